package call

import (
	"sync"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
)

const (
	// inMemory is how much of one response waits in memory. What is more waits in the file.
	inMemory = 1 << 20

	// mostAtOnce is how much is written to a client at once: timeouts of the server count from
	// one write to the next, and those of Caddy's reverse proxy are as large.
	mostAtOnce = 32 << 10
)

// A sender sends what the handler has written: in a goroutine while there is something to send,
// and at the end in the handler's.
type sender struct {
	call *Call

	mu       sync.Mutex // guards what follows
	changed  sync.Cond  // with each piece that was sent
	spool    body.Spool
	flushes  bool // when all that is there has been sent
	running  bool
	panicked any
}

func newSender(c *Call) *sender {
	s := &sender{call: c, spool: c.part.caller.NewSpool(inMemory)}
	s.changed.L = &s.mu
	return s
}

// write takes a part of the response. Out of room, it waits for the client.
func (s *sender) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for written := 0; ; {
		if s.call.lost.Load() {
			return len(p), nil
		}
		n, err := s.spool.Write(p[written:])
		written += n
		switch {
		case err == nil:
			s.start()
			return written, nil
		case s.running || !s.spool.Empty():
			s.start()
			s.changed.Wait()
		default: // others hold all there is
			s.unlocked(func() { n, err = s.call.writeNow(p[written:]) })
			return written + n, err
		}
	}
}

// flush has the server flush.
func (s *sender) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.call.lost.Load() {
		s.flushes = true
		s.start()
	}
}

// start starts the goroutine, unless it runs. The caller holds the lock.
func (s *sender) start() {
	if !s.running {
		s.running = true
		go s.run()
	}
}

// run sends in a goroutine. A panic goes on in that of the handler.
func (s *sender) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if panicked := recover(); panicked != nil {
			s.panicked = panicked
			s.call.lost.Store(true)
		}
	}()
	s.send()
}

// send sends what is there. The caller holds the lock.
func (s *sender) send() {
	defer func() {
		if s.running = false; s.call.lost.Load() {
			s.spool.Close()
		}
		s.changed.Broadcast()
	}()
	for !s.call.lost.Load() {
		piece, err := s.spool.Next()
		switch {
		case err != nil: // the file cannot be read
			s.call.lose()
		case len(piece) > 0:
			piece = piece[:min(len(piece), mostAtOnce)]
			s.unlocked(func() { _, _ = s.call.writeNow(piece) })
			s.spool.Discard(len(piece))
			s.changed.Broadcast()
		case s.flushes:
			s.flushes = false
			s.unlocked(func() { _ = s.call.flushNow() })
		default:
			return
		}
	}
}

// unlocked lets others hold the lock meanwhile.
func (s *sender) unlocked(do func()) {
	s.mu.Unlock()
	defer s.mu.Lock()
	do()
}

// catchUp sends all that is there, and returns when nobody else sends. It panics as the
// goroutine has.
func (s *sender) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running {
		s.changed.Wait()
	}
	if panicked := s.panicked; panicked != nil {
		s.panicked = nil
		panic(panicked)
	}
	s.running = true
	s.send()
}

// close throws away what is left.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call.lost.Store(true)
	s.spool.Close()
}
