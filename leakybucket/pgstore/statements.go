package pgstore

import (
	"embed"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// lockPatience is how long PostgreSQL lets a transaction hold its locks while
// the client is silent, because it has stopped or was cut off.
const lockPatience = 500 * time.Millisecond

//go:embed sql/*.sql
var files embed.FS

// statements returns the SQL statements for one table, by the names of the files that
// explain them.
func (o *Options) statements() map[string]string {
	unlogged, unsynced := "UNLOGGED", ""
	if o.Logged {
		unlogged, unsynced = "", ", set_config('synchronous_commit', 'off', true)"
	}
	fill := strings.NewReplacer("{table}", o.quotedTable(""), "{registry}", o.quotedTable(registrySuffix), "{unlogged}", unlogged,
		"{unsynced}", unsynced, "{patience}", strconv.FormatInt(lockPatience.Milliseconds(), 10))
	statements := make(map[string]string)
	names, _ := fs.Glob(files, "sql/*.sql") // the pattern is valid, and what it finds is embedded
	for _, name := range names {
		sql, _ := files.ReadFile(name)
		statements[strings.TrimSuffix(path.Base(name), ".sql")] = fill.Replace(onOneLine(string(sql)))
	}
	return statements
}

// begin begins each transaction, whatever the role's defaults are.
const begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

// registrySuffix is what the name of the table of texts has behind that of the buckets.
const registrySuffix = "_changes"

// quotedTable returns the table's name with a suffix as statements need it.
func (o *Options) quotedTable(suffix string) string {
	return pgx.Identifier(strings.Split(o.Table+suffix, ".")).Sanitize()
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// onOneLine removes comments and line breaks, which PostgreSQL would parse each
// time.
func onOneLine(sql string) string {
	var words []string
	for line := range strings.Lines(sql) {
		code, _, _ := strings.Cut(line, "--")
		words = append(words, strings.Fields(code)...)
	}
	return strings.Join(words, " ")
}
