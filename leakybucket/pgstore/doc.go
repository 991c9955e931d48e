// Package pgstore keeps buckets in a table of PostgreSQL, so that several
// processes share one limit. Any version from 12 on will do.
//
// # What is promised
//
// A [Store] keeps the contract of [leakybucket.Store] for all processes that
// share a table, on the clock of the server: theirs may differ as they like.
// Several buckets are asked in one transaction, all or none. Two stores with
// different prefixes share nothing but the table.
//
// A call ends when its context does, whatever PostgreSQL and the network are at.
// What was not sent then never is; what was may be charged. Nothing that may
// have been executed is ever repeated: an error says that the charges may have
// been poured, but never twice. A batch that the server has certainly rolled
// back is begun again, so that nobody sees a deadlock, a race for a new bucket,
// or that a connection had been idle while the server was restarted.
//
// [New] neither connects nor fails when PostgreSQL is down. What stops is found
// again by itself, within a second of its first answer.
//
// # How
//
// A commit for each request is what makes a database a poor limiter. Here all
// calls that come while a transaction is under way share the next one, up to
// 500 charges; it leaves when the last returns, and nobody waits for a timer.
// A transaction is two round trips. The first locks the rows in the order of
// their names, which all do, and reads them and then the clock. The decisions
// are made by [leakybucket.TakeAll] and [leakybucket.Settlement.Apply] in this
// process, so there is no second copy of the rules in SQL that could differ. The
// second writes what has changed, and commits. What is refused writes nothing,
// and is answered after the first.
//
// A row that is not there is not locked. If two make the same one, the second
// is turned back by the primary key, and begins again: it makes its rows first,
// empty, so that this cannot go on. Otherwise no take that is refused leaves a
// row behind, and those it may leave are forgotten in ten seconds.
//
// A process that stops between the two round trips holds its locks until
// PostgreSQL ends its transaction, after half a second. Others who want the same
// buckets run into their deadlines until then.
//
// # The table
//
// It is made on first use, as sql/create.sql has it, by whichever process comes
// first. A role that may not make tables can use one that is there, with
//
//	GRANT SELECT, INSERT, UPDATE, DELETE ON throttle_buckets TO <role>
//
// Its only index is the primary key, and half of each page is kept free. So
// updates are HOT, touching one page and no index, and the table stays small
// without much vacuuming. To see what is in it:
//
//	SELECT convert_from(name, 'UTF8'), level, to_timestamp(at / 1e6) FROM throttle_buckets
//
// (or encode(name, 'escape'), if keys may be any bytes). A name is the prefix, a
// colon, or a tilde in shadow, the zone, a slash and the key; beyond 1,024 bytes
// a digest stands for it.
//
// The table is UNLOGGED by default: nothing is written to the log of the
// server, no commit waits for a disk, a crash of the server (not a restart)
// empties all buckets, and standbys have none. With [Options.Logged] buckets
// survive a crash, save for what was decided in the last three times
// wal_writer_delay, 0.6 seconds by default; with [Options.WaitForDisk] without
// exception. An unlogged table becomes a logged one when a store is opened that
// wants it so, and never the other way.
//
// # Forgetting
//
// A bucket that may be forgotten is deleted some time later. In the background
// each store looks through the table again and again, 64 pages at a time, in
// about [Options.ForgetEvery] for the whole; it passes over rows that others
// have locked. An index by time would find them sooner, and make every request
// write to it.
//
// # PgBouncer
//
// Transaction mode will do: statements have no names, and what is set is set for
// a transaction. Give the pool at least as many server connections as the stores
// together have, lest a transaction wait for a connection.
//
// # Sizing
//
// A bucket with an IPv4 address as its key takes some 200 bytes, index and free
// room included. A store has two connections by default, of which one serves
// requests: on one machine that was enough for tens of thousands of decisions a
// second. bench/README.md has the figures.
package pgstore
