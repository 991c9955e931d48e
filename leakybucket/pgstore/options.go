package pgstore

import (
	"embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options of a Store. All but URL have defaults.
type Options struct {
	// URL says where PostgreSQL is: postgres://user@host:5432/database, with
	// settings as libpq knows them, such as ?sslmode=verify-full. Special signs
	// in a password must be percent-encoded there. Required.
	URL string

	// User and Password, if given, stand in for those of the URL.
	User, Password string

	// Table is where the buckets are; throttle_buckets by default. A schema may
	// stand before it, with a dot, which must exist. Both are of lower-case
	// letters, digits and _.
	Table string

	// Prefix keeps apart what several sites keep in one table. It is of letters,
	// digits, _, . and -, at most 64 of them; none by default.
	Prefix string

	// Logged makes the table survive a crash of the server, at the cost of
	// writing all changes to the log. A crash still loses what was decided in
	// the last 0.6 seconds or so (three times wal_writer_delay), but see
	// WaitForDisk. By default a crash empties all buckets, and a standby has
	// none.
	Logged bool

	// WaitForDisk, of a Logged table, gives no answer before it is on disk, so
	// that a crash loses nothing that was acknowledged.
	WaitForDisk bool

	// Connections bounds the connections to PostgreSQL, 2 by default: one for
	// requests, one for the rest. Of more all but one are for requests, each
	// with a share of the buckets. That makes batches smaller, and helps only
	// where the network is slow and one connection is always busy.
	Connections int

	// ForgetEvery is how long it takes to look through the whole table for
	// buckets to forget; a minute by default.
	ForgetEvery time.Duration

	// OnError, if given, is told what fails while nobody waits for it: the first
	// connection, and forgetting. It is called by one goroutine at a time.
	OnError func(error)
}

const (
	defaultTable       = "throttle_buckets"
	defaultConnections = 2
	defaultForgetEvery = time.Minute

	// connectPatience bounds an attempt to connect. The next one is sooner than
	// the retransmission of a lost packet.
	connectPatience = 500 * time.Millisecond

	// lockPatience is how long PostgreSQL waits for a client that holds locks
	// and has stopped, before it lets others have them.
	lockPatience = 500 * time.Millisecond
)

var (
	tableName  = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}$`)
	prefixName = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)
)

// poolConfig returns how to connect. Nothing in its errors is of the URL, which
// may hold a password in places where nobody expects one.
func (o *Options) poolConfig() (*pgxpool.Config, error) {
	if u, err := url.Parse(o.URL); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("invalid URL: want postgres://user:password@host:5432/database, special signs in the password percent-encoded")
	}
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, errors.New("invalid setting in the URL: want those of libpq, such as ?sslmode=verify-full&sslrootcert=<file>, and files that can be read")
	}
	connect := config.ConnConfig
	if o.User != "" {
		connect.User = o.User
	}
	if o.Password != "" {
		connect.Password = o.Password
	}
	if connect.ConnectTimeout == 0 || connect.ConnectTimeout >= 2*time.Minute { // pgx's own default
		connect.ConnectTimeout = connectPatience
	}
	if _, given := connect.RuntimeParams["application_name"]; !given {
		connect.RuntimeParams["application_name"] = "throttle"
	}
	// Of the few statements that go this way none may be tied to a session.
	connect.DefaultQueryExecMode = pgx.QueryExecModeExec
	connect.StatementCacheCapacity, connect.DescriptionCacheCapacity = 0, 0
	config.MaxConns, config.MinConns, config.MinIdleConns = int32(o.Connections), 0, 0
	config.PingTimeout = connectPatience
	return config, nil
}

func (o *Options) setDefaults() error {
	if o.Table == "" {
		o.Table = defaultTable
	}
	if !tableName.MatchString(o.Table) {
		return fmt.Errorf("invalid table %q: want [<schema>.]<table> of lower-case letters, digits and _", o.Table)
	}
	if !prefixName.MatchString(o.Prefix) {
		return fmt.Errorf("invalid prefix %q: want at most 64 letters, digits, _, . and -", o.Prefix)
	}
	if o.WaitForDisk && !o.Logged {
		return errors.New("invalid options: to wait for the disk makes sense for a logged table only")
	}
	if o.Connections == 0 {
		o.Connections = defaultConnections
	}
	if o.Connections < 0 || o.Connections > 100 {
		return fmt.Errorf("invalid number of connections %d: want 1 to 100", o.Connections)
	}
	if o.ForgetEvery <= 0 {
		o.ForgetEvery = defaultForgetEvery
	}
	return nil
}

// quotedTable returns the table as it stands in statements.
func (o *Options) quotedTable() string {
	parts := strings.Split(o.Table, ".")
	return pgx.Identifier(parts).Sanitize()
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// beginning returns the statements that a transaction begins with. They hold
// until its end, so that a pooler may give the session to anybody then.
func (o *Options) beginning() []string {
	begin := []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		"SET LOCAL idle_in_transaction_session_timeout = " + strconv.FormatInt(lockPatience.Milliseconds(), 10),
	}
	switch {
	case o.WaitForDisk:
		begin = append(begin, "SET LOCAL synchronous_commit = on")
	case o.Logged:
		begin = append(begin, "SET LOCAL synchronous_commit = off")
	}
	return begin
}

//go:embed sql/*.sql
var files embed.FS

type queries struct{ create, make, lock, clock, update, insert, reset, forget string }

// load returns the statements for a table.
func (o *Options) load() queries {
	unlogged := "UNLOGGED"
	if o.Logged {
		unlogged = ""
	}
	words := strings.NewReplacer("{table}", o.quotedTable(), "{unlogged}", unlogged)
	read := func(name string) string {
		sql, err := files.ReadFile("sql/" + name + ".sql")
		if err != nil {
			panic(err) // it was there when this was compiled
		}
		return words.Replace(onOneLine(string(sql)))
	}
	return queries{read("create"), read("make"), read("lock"), read("clock"), read("update"), read("insert"), read("reset"), read("forget")}
}

func address(config *pgx.ConnConfig) string {
	if strings.HasPrefix(config.Host, "/") {
		return config.Host
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}
