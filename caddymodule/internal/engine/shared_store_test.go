package engine_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// A reload keeps the store, and errors that no request waits for go to the log of
// the config that runs.
func TestErrorsOfAStoreThatNoRequestWaitsForAreLoggedByTheConfigThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servertest.TheShared = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
		const config = "{\nthrottle {\nstore test_shared\n}\n}\nhttp:// {\nthrottle site 5 1/s\n}"
		start := func() *servertest.Site {
			s := servertest.Run(t, config)
			if err := s.Module().Start(); err != nil {
				t.Fatal(err)
			}
			return s
		}
		wantLines := func(s *servertest.Site, want int) {
			t.Helper()
			synctest.Wait()
			if got := s.Logs.Lines(t, "looking after the store"); len(got) != want || want > 0 && !strings.Contains(got[0]["error"].(string), "disk full") {
				t.Errorf("got %v, want %d lines", got, want)
			}
		}
		fail := func() { (*servertest.TheShared.OnError.Load())(errors.New("disk full")) }
		first := start()
		for range 3 {
			fail()
		}
		wantLines(first, 1)
		<-time.After(time.Minute)
		fail()
		wantLines(first, 2)

		second := start()
		_ = first.Module().Stop()
		first.Stop()
		<-time.After(time.Minute)
		fail()
		wantLines(first, 2)
		wantLines(second, 1)

		// A reload that fails takes nothing with it.
		third := start()
		_ = third.Module().Stop()
		third.Stop()
		<-time.After(time.Minute)
		fail()
		wantLines(second, 2)
		wantLines(third, 0)
		_ = second.Module().Stop()
		second.Stop()
		<-time.After(time.Second)
	})
}
