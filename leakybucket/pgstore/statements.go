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
	unlogged := "UNLOGGED"
	if o.Logged {
		unlogged = ""
	}
	fill := strings.NewReplacer("{table}", o.quotedTable(""), "{registry}", o.quotedTable(registrySuffix), "{unlogged}", unlogged)
	statements := make(map[string]string)
	names, _ := fs.Glob(files, "sql/*.sql") // the pattern is valid, and what it finds is embedded
	for _, name := range names {
		sql, _ := files.ReadFile(name)
		statements[strings.TrimSuffix(path.Base(name), ".sql")] = fill.Replace(onOneLine(string(sql)))
	}
	return statements
}

// begin returns the statements that begin a batch. Their settings end with the
// transaction, because a pooler may give the session to another client then.
func (o *Options) begin() []string {
	begin := []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		"SET LOCAL idle_in_transaction_session_timeout = " + strconv.FormatInt(lockPatience.Milliseconds(), 10),
	}
	if o.Logged {
		begin = append(begin, "SET LOCAL synchronous_commit = off")
	}
	return begin
}

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
