// Package pgstore keeps buckets in a table of PostgreSQL, so that several
// processes share one limit. It needs PostgreSQL 14 or newer, and is tested with
// PostgreSQL 15. An older server is refused with an error that says so.
//
// # Promises
//
// A [Store] keeps the contract of [leakybucket.Store] for all processes that
// share a table, on the server's clock. The clocks of the processes may differ.
// Several buckets are decided in one transaction, all or none. Two stores with
// different prefixes share nothing but the table.
//
// A call ends when its context does, even if PostgreSQL or the network hangs.
// Calls not yet sent are dropped. Calls already sent may still have been charged.
// Nothing that may have been executed is ever repeated: after an error, charges
// were poured once or not at all. A batch that the server has certainly rolled
// back is retried. So callers see no deadlocks, no races for a new bucket, and no
// idle connections that a restart of the server has closed, unless a pool given to [New]
// has four of them in a row.
//
// [Open] does not connect. The first call does, or [Store.Start], which also
// creates the table and deletes expired buckets from then on. After an outage the
// store answers again within a second of the server's first answer.
//
// # How it works
//
// A commit for each request is what makes a database a poor limiter. Here all
// calls that arrive while a transaction is under way share the next one, up to
// 500 charges. It is sent when the last one returns, so no call waits for a timer.
//
// A transaction takes two round trips: the first locks and reads the rows, this process decides by
// store.TakeAll, and the second writes and commits. Refusals, probes and charges of cost 0 write no
// row, unless a block begins or the leak has changed.
//
// A process that stops between the two round trips holds its locks until
// PostgreSQL ends its transaction, after half a second. Calls for the same buckets
// run into their deadlines meanwhile.
//
// # The table
//
// The store creates the table on first use, from sql/create.sql. A role that may
// not create tables can use an existing one, with
//
//	GRANT SELECT, INSERT, UPDATE, DELETE ON throttle_buckets TO <role>
//
// The primary key is the only index, and half of each page is kept free. So
// updates are HOT: they touch one page and no index, and the table stays small
// with little vacuuming. To see what is in it:
//
//	SELECT convert_from(name, 'UTF8'), level, to_timestamp(at / 1e6) FROM throttle_buckets
//
// (or encode(name, 'escape'), if keys may be any bytes). A name is the prefix, a
// colon (a tilde in shadow), the zone, a slash and the key. Names of more than
// 1,024 bytes are replaced by a digest.
//
// The table is UNLOGGED by default. Then nothing is written to the write-ahead
// log, no commit waits for a disk, and standbys have no buckets. A crash of the
// server, but not a restart, empties all buckets. With [Options].Logged, buckets
// survive a crash except for decisions of about the last 0.6 seconds (three times
// wal_writer_delay). A store that wants a logged table makes an unlogged one logged, never the other way
// round.
//
// # Upgrading
//
// The table's comment says which schema it has, and which one a store must know
// to use it:
//
//	SELECT obj_description('throttle_buckets'::regclass, 'pg_class')
//	caddy-throttle buckets: schema 1, usable by schema 1 and newer
//
// Two versions of this package can share a table, so nodes can be upgraded one by
// one. A role that may not create the table gets an error with the statements that
// its owner must run.
//
// A table of a newer version is used if its comment allows it, and else refused
// with an error. No version drops a table.
//
// # Expiry
//
// A bucket that is empty, and whose block is forgotten, is deleted some time
// later. Each store searches the whole table in the background, 64 pages at a
// time, in about [Options].ForgetEvery. It skips locked rows. An index by time
// would find expired buckets faster, but every request would have to write to it.
//
// # TLS
//
// Each new connection reads the files again that the URL names, such as
// sslrootcert, so a rotated certificate under the same path takes effect without a
// new store. If a file cannot be read, the last good ones stay in use and the
// error goes to Options.OnError. Open connections stay open
// until they are an hour old (pool_max_conn_lifetime).
//
// # PgBouncer
//
// Transaction mode works: statements have no names, and settings end with the
// transaction. Give the pool at least as many server connections as all stores
// together have, or transactions will wait for one.
//
// # Sizing
//
// A bucket keyed by an IPv4 address takes about 200 bytes, with its index entry
// and free space. A store has two connections, one of which serves requests. On one
// machine that was enough for tens of thousands of decisions a second;
// docs/performance.md has the figures.
package pgstore
