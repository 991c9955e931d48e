package pgstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Store keeps buckets in a table of PostgreSQL.
type Store struct {
	pool  *pgxpool.Pool
	lanes []*lane
	seed  maphash.Seed // of what chooses a lane

	prefix        string
	table         string // quoted
	address, user string // for errors
	logged        bool
	sql           queries
	begin         []string

	prepared  atomic.Bool   // the table is known to be there
	preparing chan struct{} // holds who sees to that

	stop    context.CancelFunc
	working sync.WaitGroup
	onError func(error)

	held       atomic.Int64 // the clock in tests; 0 is the server's own
	forgetting sync.Mutex   // not to forget by where a test's clock was before
}

// New returns a store that connects in the background. It fails for options that
// make no sense only: whether PostgreSQL is there, and lets one in, Ping says.
func New(o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	config, err := o.poolConfig()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		stop()
		return nil, fmt.Errorf("preparing connections: %w", err)
	}
	s := &Store{
		pool:      pool,
		seed:      maphash.MakeSeed(),
		prefix:    o.Prefix,
		table:     o.quotedTable(),
		address:   address(config.ConnConfig),
		user:      config.ConnConfig.User,
		logged:    o.Logged,
		sql:       o.load(),
		begin:     o.beginning(),
		preparing: make(chan struct{}, 1),
		stop:      stop,
		onError:   o.OnError,
	}
	for range max(1, o.Connections-1) {
		l := newLane()
		s.lanes = append(s.lanes, l)
		s.working.Go(func() { l.work(ctx, s.do) })
	}
	s.working.Go(func() { s.connectAndForget(ctx, o.ForgetEvery) })
	return s, nil
}

// Close answers what is under way, turns away what waits, and returns when the
// connections are closed and all goroutines have ended. A call after it fails.
func (s *Store) Close() {
	s.stop()
	s.working.Wait()
	s.pool.Close()
}

// Take implements [leakybucket.Store]. It fails when ctx ends first; the charges
// may have been poured then.
func (s *Store) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if len(charges) == 0 {
		return nil
	}
	c := &call{
		charges:   slices.Clone(charges),
		decisions: make([]leakybucket.Decision, len(charges)),
		names:     make([]string, len(charges)),
	}
	for i := range charges {
		c.names[i] = s.nameOf(&charges[i])
	}
	if err := s.call(ctx, c); err != nil {
		return err
	}
	copy(decisions, c.decisions)
	return nil
}

// Settle implements [leakybucket.Store]. It is one atomic step.
func (s *Store) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	if len(settlements) == 0 {
		return nil
	}
	c := &call{
		settlements: slices.Clone(settlements),
		names:       make([]string, len(settlements)),
	}
	for i := range settlements {
		c.names[i] = s.nameOf(&settlements[i].Charge)
	}
	return s.call(ctx, c)
}

// call lets a lane do a call, and waits for it or for the end of ctx.
func (s *Store) call(ctx context.Context, c *call) error {
	if ctx.Err() != nil {
		return s.outOfPatience(ctx)
	}
	c.gone, c.answer = ctx.Done(), make(chan error, 1)
	c.deadline, _ = ctx.Deadline()
	l := s.laneOf(c.names[0])
	if err := l.join(c); err != nil {
		return err
	}
	select {
	case err := <-c.answer:
		return err
	case <-ctx.Done():
		l.leave(c)
		return s.outOfPatience(ctx)
	}
}

// Ping implements [leakybucket.Pinger]. It does what a request does, with no
// bucket at all, so that PostgreSQL looks at the privileges.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	return s.explain(s.ping(ctx))
}

func (s *Store) ping(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	t := transaction{s, conn, conn.Conn().PgConn()}
	_, err = t.lock(ctx, &batch{})
	if err == nil {
		err = t.tryWrites(ctx)
	}
	if err != nil {
		return t.failed(ctx, err)
	}
	return nil
}

// Reset implements [leakybucket.Resetter].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	if err := s.prepare(ctx); err != nil {
		return s.explain(err)
	}
	_, err := s.pool.Exec(ctx, s.sql.reset, []byte(s.name(zone, key, shadow)))
	return s.explain(err)
}

func (s *Store) heldAt() leakybucket.Instant { return leakybucket.Instant(s.held.Load()) }

// Interface guards
var (
	_ leakybucket.Store    = (*Store)(nil)
	_ leakybucket.Pinger   = (*Store)(nil)
	_ leakybucket.Resetter = (*Store)(nil)
)
