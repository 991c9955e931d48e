package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/coalesce"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// A Store keeps buckets in a table of PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	ownsPool bool
	lanes    *coalesce.Lanes[struct{}, *call] // a single one
	onError  func(error)

	named
	preparation
	lifetime

	beside chan struct{} // held by what uses a connection and is no batch, so that no batch waits for one; and while a test sets the clock
	held   atomic.Int64  // the clock of tests; 0 is the server's
}

// The named tables and the rest of the options, with the statements that name them.
type named struct {
	prefix          string
	table, registry string // quoted
	address, user   string // for errors
	wantsLogged     bool
	sql             map[string]string // statements, by their files
}

// A preparation is that of the table.
type preparation struct {
	prepared  atomic.Bool   // the table is known to exist
	preparing chan struct{} // held by the call that prepares the table
}

// A lifetime is what runs beside calls until Close.
type lifetime struct {
	background  context.Context // ends with Close
	stop        context.CancelFunc
	working     sync.WaitGroup
	starting    sync.Once
	forgetEvery time.Duration // one search of the whole table for expired buckets
}

// New returns a store that uses a pool, of two connections at least, to PostgreSQL or to a
// pooler such as PgBouncer, in any query mode. [Store.Close] leaves the pool open. It fails if the options are
// invalid.
func New(pool *pgxpool.Pool, o Options) (*Store, error) {
	if o.User != "" || o.Password != "" {
		return nil, errors.New("got a user or a password beside a pool: give them to the pool, or call Open")
	}
	s, err := newStore(&o)
	if err != nil {
		return nil, err
	}
	s.use(pool)
	return s, nil
}

// Open returns a store for a server: postgres://user@host:5432/database, with libpq's settings,
// such as ?sslmode=verify-full&sslrootcert=<file>. Special characters in the password must be
// percent-encoded.
//
// Each new connection reads the files that the URL names again, so a rotated certificate needs no
// new store. Connections live for an hour at most, or as long as pool_max_conn_lifetime says.
//
// It does not connect: the first call does, or [Store.Start]. It fails if the options are invalid
// or a file that the URL names cannot be read.
func Open(url string, o Options) (*Store, error) {
	s, err := newStore(&o)
	if err != nil {
		return nil, err
	}
	config, err := o.poolConfig(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(s.background, config)
	if err != nil {
		return nil, fmt.Errorf("preparing connections: %w", err)
	}
	s.use(pool)
	s.ownsPool = true
	return s, nil
}

func newStore(o *Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Store{
		named: named{
			prefix: o.Prefix, table: o.quotedTable(""), registry: o.quotedTable(registrySuffix), wantsLogged: o.Logged,
			sql: o.statements(),
		},
		preparation: preparation{preparing: make(chan struct{}, 1)},
		lifetime:    lifetime{forgetEvery: time.Minute},
		beside:      make(chan struct{}, 1),
		onError:     o.OnError,
	}
	s.background, s.stop = context.WithCancel(context.Background())
	s.lanes = coalesce.New(coalesce.Options{MaxWeight: mostCharges}, s.sendBatch)
	return s, nil
}

func (s *Store) use(pool *pgxpool.Pool) {
	connect := pool.Config().ConnConfig
	s.pool, s.address, s.user = pool, address(connect), connect.User
}

// Start begins to look after the table in the background: it connects, creates
// the table, and from then on deletes expired buckets. It returns at
// once. Without it, expired buckets stay in the table. After the first call, or
// after Close, it does nothing.
func (s *Store) Start() {
	s.starting.Do(func() { s.working.Go(func() { s.lookAfter(s.background) }) })
}

// report passes an error to the callback, unless it comes from Close.
func (s *Store) report(err error) {
	if s.onError != nil && !errors.Is(err, context.Canceled) {
		s.onError(err)
	}
}

// Close finishes the calls under way, fails those that wait, and returns when all goroutines
// have ended and the connections that [Open] made are closed. Later calls fail.
func (s *Store) Close() {
	s.stop()
	s.starting.Do(func() {}) // from now on Start does nothing
	s.lanes.Close()
	s.working.Wait()
	if s.ownsPool {
		s.pool.Close()
	}
}

// resetPool closes all connections once the server has ended one. Those of a pool that others
// use too are theirs to lose.
func (s *Store) resetPool() {
	if s.ownsPool {
		s.pool.Reset()
	}
}

// Take implements [leakybucket.Store]. If ctx ends first, it returns an error
// that wraps the context's cause, and the charges may have been poured.
func (s *Store) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if len(charges) == 0 {
		return nil
	}
	c := &call{charges: slices.Clone(charges), decisions: make([]leakybucket.Decision, len(charges))}
	for i := range charges {
		c.names = append(c.names, s.nameOf(&charges[i]))
	}
	if err := s.call(ctx, c); err != nil {
		return err
	}
	copy(decisions, c.decisions)
	return nil
}

// Settle implements [leakybucket.Store]. All settlements are one atomic step.
func (s *Store) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	if len(settlements) == 0 {
		return nil
	}
	c := &call{settlements: slices.Clone(settlements)}
	for i := range settlements {
		c.names = append(c.names, s.nameOf(&settlements[i].Charge))
	}
	return s.call(ctx, c)
}

// Reset implements [store.Resetter].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	return s.onTable(ctx, func(p *pipeline) { p.add(s.sql["reset"], []byte(s.name(zone, key, shadow))) }, nil)
}

// onTable is sendAlone for statements on the table, and once more if the table was dropped.
func (s *Store) onTable(ctx context.Context, fill func(*pipeline), each func(values [][]byte) error) error {
	var err error
	for range 2 {
		if err = s.prepare(ctx); err == nil {
			err = s.sendAlone(ctx, fill, each)
		}
		if !isCode(err, undefinedTable, undefinedColumn) {
			break
		}
		s.prepared.Store(false) // look at the table again
	}
	return s.explain(err, s.table)
}

// holding calls f while it holds a lock, which is a channel of one place.
func holding(ctx context.Context, lock chan struct{}, f func() error) error {
	select {
	case lock <- struct{}{}:
		defer func() { <-lock }()
		return f()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Interface guards
var (
	_ leakybucket.Store = (*Store)(nil)
	_ store.Resetter    = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
)
