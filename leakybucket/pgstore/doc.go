// Package pgstore keeps buckets in a table of PostgreSQL.
package pgstore
