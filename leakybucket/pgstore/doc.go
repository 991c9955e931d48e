// Package pgstore keeps buckets in a table of PostgreSQL 14 or newer, so that several processes
// share one limit.
//
// A [Store] keeps the contract of [leakybucket.Store] for all processes that share a table, on
// the server's clock. All calls that arrive while a transaction is under way share the next one,
// up to 500 charges, so no call waits for a timer. A transaction is two round trips: the first
// locks and reads the rows, this process decides by store.TakeAll, and the second writes and
// commits.
//
// A call ends when its context does, even if PostgreSQL hangs. Nothing that may have been
// executed is ever repeated: after an error, charges were poured once or not at all. What the
// server has certainly rolled back is tried again, so callers see no deadlocks and no idle
// connections that a restart has closed. A process that stops between the round trips holds its
// locks for half a second. After an outage the store answers within a second of the server's
// first answer.
//
// # The table
//
// The store creates it on first use, from sql/create.sql, and that of the registry from
// sql/registry_create.sql. A role that may not create tables needs
//
//	GRANT SELECT, INSERT, UPDATE, DELETE ON throttle_buckets, throttle_buckets_changes TO <role>
//
// A row is named by the prefix, a colon (a tilde in shadow), the zone, a slash and the key; a
// name of more than 1,024 bytes by a digest. It takes about 200 bytes. Expired rows are deleted
// in the background, once [Store.Start] was called.
//
// The table is UNLOGGED by default: no commit waits for a disk, standbys have no buckets, and a
// crash of the server, but not a restart, empties all. See [Options].Logged.
//
// No version drops a table or a column, so processes of two versions share one while they are
// upgraded one by one. PgBouncer works in transaction mode.
package pgstore
