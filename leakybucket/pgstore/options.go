package pgstore

import (
	"cmp"
	"fmt"
	"regexp"
)

// Options configure a [Store]. The zero value is ready for use.
type Options struct {
	// User and Password replace those of the URL that is given to [Open]. If empty, the URL's
	// are used. A pool that is given to [New] has its own.
	User, Password string

	// Table is the table of the buckets, perhaps with a schema and a dot before
	// it. The schema must exist. Both names are of lower-case letters, digits
	// and _, the table's at most 55 of them. If empty, it is throttle_buckets. The table
	// of the [store.Registry] has _changes behind the name.
	Table string

	// Prefix separates the buckets of sites that share a table. It is at most 64
	// letters, digits, _, . and -. If empty, names have no prefix.
	Prefix string

	// Logged makes the buckets survive a crash of the server, except for
	// decisions of about the last 0.6 seconds (three times wal_writer_delay).
	// Each change is then written to the write-ahead log. If false, a crash
	// empties all buckets, and standbys have none. A table that is unlogged is an
	// error, which says how its owner changes it.
	Logged bool

	// OnError is called with errors that occur while no call waits for them: the table cannot
	// be prepared, or expired buckets cannot be deleted. It must not block. If nil, such errors
	// are dropped.
	OnError func(error)
}

const defaultTable = "throttle_buckets"

var (
	tableName  = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,54}$`)
	prefixName = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)
)

func (o *Options) setDefaults() error {
	o.Table = cmp.Or(o.Table, defaultTable)
	if !tableName.MatchString(o.Table) {
		return fmt.Errorf("invalid table %q: want [<schema>.]<table> of lower-case letters, digits and _", o.Table)
	}
	if !prefixName.MatchString(o.Prefix) {
		return fmt.Errorf("invalid prefix %q: want at most 64 letters, digits, _, . and -", o.Prefix)
	}
	return nil
}
