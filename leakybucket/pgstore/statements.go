package pgstore

import (
	"embed"
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

// statements are the SQL statements for one table. Each is explained in its
// file.
type statements struct {
	inspect, create, comment, logged  string
	make, lock, clock, update, insert string
	reset, size, forget, list         string

	boardCreate, boardLock, boardWrite, boardLatest, boardRead string

	begin []string // begins the transaction of a batch
}

func (o *Options) statements() statements {
	unlogged := "UNLOGGED"
	if o.Logged {
		unlogged = ""
	}
	fill := strings.NewReplacer("{table}", o.quotedTable(""), "{board}", o.quotedTable(boardSuffix), "{unlogged}", unlogged, "{comment}", schemaComment)
	read := func(name string) string {
		sql, err := files.ReadFile("sql/" + name + ".sql")
		if err != nil {
			panic(err) // the file is embedded
		}
		return fill.Replace(onOneLine(string(sql)))
	}
	return statements{
		inspect: read("inspect"), create: read("create"), comment: read("comment"), logged: read("logged"),
		make: read("make"), lock: read("lock"), clock: read("clock"), update: read("update"), insert: read("insert"),
		reset: read("reset"), size: read("size"), forget: read("forget"), list: read("list"),
		boardCreate: read("board_create"), boardLock: read("board_lock"), boardWrite: read("board_write"), boardLatest: read("board_latest"), boardRead: read("board_read"),
		begin: o.begin(),
	}
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

// boardSuffix is what the name of the board's table has behind that of the buckets.
const boardSuffix = "_board"

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
