package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// A distant connection leads to a server one millisecond away.
type distant struct{ net.Conn }

func (d distant) Write(b []byte) (int, error) {
	<-time.After(time.Millisecond)
	return d.Conn.Write(b)
}

// openDistant returns a store of servers that are one millisecond away.
func openDistant(t *testing.T, url string) *Store {
	t.Helper()
	s := open(t, url, Options{})
	near := s.connection.option.DialCtxFn
	s.connection.option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := near(ctx, address, dialer, config)
		if err != nil {
			return nil, err
		}
		return distant{conn}, nil
	}
	return s
}

// siteAndClient returns a site's bucket, and a client's that is in a later slot.
func siteAndClient(s *Store, site, client leakybucket.Limit) (leakybucket.Charge, leakybucket.Charge) {
	first := charge(keyIn(s, func(slot uint16) bool { return slot < 5000 }), site, 1)
	return first, charge(keyIn(s, func(slot uint16) bool { return slot > 11000 }), client, 1)
}

// One client that exceeds its own limit must not close the site for others.
func TestRefusedTakesDoNotFillOtherBuckets(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := openDistant(t, c.URL())
	site, client := siteAndClient(s, leakybucket.Limit{Capacity: 500, Leak: 500}, leakybucket.Limit{Capacity: 1, Leak: 1e-6})
	client.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
	mustTake(t, s, client)
	const takes, span = 3000, 3 * time.Second
	ticker := time.NewTicker(span / takes)
	defer ticker.Stop()
	var wg sync.WaitGroup
	for range takes {
		<-ticker.C
		wg.Go(func() {
			var d [2]leakybucket.Decision
			if err := s.Take(context.Background(), []leakybucket.Charge{site, client}, d[:]); err != nil {
				t.Error(err)
			} else if d[0].Poured || d[1].Fits {
				t.Errorf("take with a full bucket: got %+v, want it refused", d)
			}
		})
	}
	wg.Wait()
	if got := levelOf(t, s, site); got >= 5 {
		t.Errorf("level of the site's bucket after %d refused takes: got %.1f, want less than 5", takes, got)
	}
}

// Two takes that both fit alone, and not together, are one admitted and one refused.
func TestOfTwoTakesThatBothFittedOneIsAdmitted(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s, other := openDistant(t, c.URL()), openDistant(t, c.URL())
	block := &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
	raced := 0
	for round := range 100 {
		single := leakybucket.Limit{Capacity: 1, Leak: 1e-6}
		var all []leakybucket.Charge
		for i := range 4 {
			ch := charge(fmt.Sprintf("%d-%d", round, i), single, 1)
			ch.Block = block
			all = append(all, ch)
		}
		var decisions [2][4]leakybucket.Decision
		var wg sync.WaitGroup
		for i, s := range []*Store{s, other} {
			wg.Go(func() {
				if err := s.Take(context.Background(), all, decisions[i][:]); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		admitted, began := 0, false
		for _, ds := range decisions {
			poured := 0
			for _, d := range ds {
				began = began || d.Began
				if d.Poured {
					poured++
				}
			}
			if poured == len(ds) {
				admitted++
			} else if poured > 0 {
				t.Errorf("round %d: got %+v, want all or none poured", round, ds)
			}
		}
		if !began {
			raced++ // both were asked before either poured
		}
		if admitted != 1 {
			t.Errorf("round %d: got %d of two takes admitted, want 1", round, admitted)
		}
		for _, ch := range all {
			if got := levelOf(t, s, ch); got > 1 || got < 0.99 {
				t.Errorf("round %d: level of %s: got %v, want 1", round, ch.Key, got)
			}
		}
	}
	if raced < 10 {
		t.Errorf("got %d of 100 rounds in which both takes had fitted, want at least 10", raced)
	}
}
