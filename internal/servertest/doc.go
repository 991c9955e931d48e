// Package servertest starts real database servers for tests and benchmarks.
//
// Servers are sub-processes on loopback ports of their own, and their files are
// in a directory that is removed. If the test runs as root, PostgreSQL and
// PgBouncer run as the user postgres.
//
// If a server is not installed, its tests are skipped. With REQUIRE_SYSTEM=1 or
// CI=true they fail instead.
package servertest
