package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func TestTheJournalSaysWhatWasChangedAndByWhom(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	s.From(servertest.Someone).Passes(2, "/hosts")
	s.From(servertest.Someone).Passes(2, "/pages")
	for _, change := range [][2]string{
		{"ban", `{"network": "203.0.113.9", "for": "2h", "note": "a scraper"}`},
		{"unban", `{"network": "203.0.113.10"}`}, // there is none
		{"unban", `{"network": "203.0.113.9"}`},
		{"release", `{"client": "203.0.113.7"}`},
		{"release", `{"client": "203.0.113.7"}`}, // empty already
		{"limit", `{"zone": "pages", "key": "203.0.113.7", "limit": "x2", "for": "1h"}`},
		{"shadow", `{"for": "30m"}`},
	} {
		s.Changes("/throttle/"+change[0], change[1])
	}
	if status := s.Admin(http.MethodPost, "/throttle/ban", `{"network": "0.0.0.0/0", "for": "1h"}`, nil); status != 400 {
		t.Errorf("got %d, want 400", status)
	}
	var got []override.Change
	s.Admin(http.MethodGet, "/throttle/journal", "", &got)
	var told []string
	for _, c := range got {
		ends := ""
		if c.Until != nil {
			ends = " for " + c.Until.Sub(c.At).Round(1e9).String()
		}
		told = append(told, c.Via+c.By+": "+c.Action+" "+c.Of+" "+c.Limit+c.Note+ends)
	}
	want := []string{
		"admin API: shadow everything  for 30m0s",
		"admin API: limit pages/203.0.113.7 x2 for 1h0m0s",
		"admin API: release hosts/203.0.113.7/example.com and 1 more ",
		"admin API: unban 203.0.113.9/32 ",
		"admin API: ban 203.0.113.9/32 a scraper for 2h0m0s",
	}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("got\n%q\nwant\n%q", told, want)
	}
}

// A failing store fails to forget buckets of a zone.
type failing struct {
	*memstore.Store
	zone string
}

func (f failing) Reset(ctx context.Context, zone, key string, shadow bool) error {
	if zone == f.zone {
		return errors.New("the store is down")
	}
	return f.Store.Reset(ctx, zone, key, shadow)
}

func TestAReleaseThatFailsHalfwaySaysAndJournalsWhatWasDone(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	s.From(servertest.Someone).Passes(2, "/hosts")
	s.From(servertest.Someone).Passes(2, "/pages")
	s.Engine().Store = failing{s.Engine().Store.(*memstore.Store), "pages"}
	before := len(journal(s))
	var got wire.Released
	if status := s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, &got); status != http.StatusOK ||
		!slices.Equal(got.Freed, []string{"hosts/203.0.113.7/example.com"}) || got.Complete || got.Failed != `zone "pages": the store is down` {
		t.Errorf("got %d %+v, want the bucket of hosts, and what went wrong in pages", status, got)
	}
	if journal := journal(s); len(journal) != before+1 || journal[0].Of != "hosts/203.0.113.7/example.com" {
		t.Errorf("got %+v, want the bucket that was emptied", journal)
	}
	if status := s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, nil); status != http.StatusBadGateway || len(journal(s)) != before+1 {
		t.Errorf("got %d with nothing done, want 502 and no line", status)
	}
}

func journal(s *servertest.Site) (all []override.Change) {
	s.Helper()
	s.Admin(http.MethodGet, "/throttle/journal", "", &all)
	return all
}

// The log says what a change was of, and nothing of a call that has changed nothing.
func TestTheLogNamesWhatHasEnded(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "2h"}`)
	for range 2 {
		s.Admin(http.MethodPost, "/throttle/unban", `{"network": "203.0.113.0/24"}`, nil)
	}
	if lines := s.Logs.Lines(t, "changed at run time"); len(lines) != 2 {
		t.Errorf("got %d lines, want one of the ban and one of its end", len(lines))
	}
	for _, line := range s.Logs.Lines(t, "changed at run time") {
		if line["of"] != "203.0.113.0/24" {
			t.Errorf("got %v, want the network", line)
		}
		if change, _ := line["change"].(map[string]any); change["ended"] == false {
			t.Errorf("got %v of a call that ended nothing", line)
		}
	}
}

// TestNobodyReplacesAnothersChangeUnawares: the answer says whose it is, until when, and why.
func TestNobodyReplacesAnothersChangeUnawares(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	journal(s) // which starts the app
	ask := func(by, path, body string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, "/throttle/"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(wire.ByHeader, by)
		w := httptest.NewRecorder()
		var api caddy.APIError
		if errors.As(servertest.ServeAdmin(w, r), &api) {
			return api.HTTPStatus, api.Err.Error()
		}
		return w.Code, w.Body.String()
	}
	for _, test := range []struct{ path, first, second, ended string }{
		{"limit", `{"zone": "pages", "limit": "x0.5", "for": "8h", "note": "the database is slow"}`, `{"zone": "pages", "limit": "60 1/s", "for": "1m"%s}`, `{"zone": "pages"}`},
		{"ban", `{"network": "203.0.113.0/24", "for": "8h", "note": "the database is slow"}`, `{"network": "203.0.113.9/24", "for": "1m"%s}`, `{"network": "203.0.113.0/24"}`},
		{"shadow", `{"for": "8h", "note": "the database is slow"}`, `{"for": "1m"%s}`, `{}`},
	} {
		if status, answer := ask("alice", test.path, test.first); status != http.StatusOK || !strings.Contains(answer, `"by":"alice"`) {
			t.Errorf("%s: got %d %s, want 200 and who", test.path, status, answer)
		}
		status, answer := ask("bob", test.path, fmt.Sprintf(test.second, ""))
		if status != http.StatusConflict || !strings.Contains(answer, "by alice") || !strings.Contains(answer, `the note "the database is slow"`) {
			t.Errorf("%s: got %d %s, want 409, whose it is and why", test.path, status, answer)
		}
		if status, answer = ask("bob", test.path, fmt.Sprintf(test.second, `, "replace": true`)); status != http.StatusOK || !strings.Contains(answer, `"by":"bob"`) {
			t.Errorf("%s: got %d %s, want it replaced", test.path, status, answer)
		}
		if status, answer = ask("carol", "un"+test.path, test.ended); status != http.StatusOK {
			t.Errorf("un%s: got %d %s, want 200", test.path, status, answer)
		}
		if status, answer = ask("carol", test.path, test.first); status != http.StatusOK {
			t.Errorf("%s after its end: got %d %s, want 200", test.path, status, answer)
		}
	}
	who := ""
	for _, entry := range journal(s) {
		who += entry.By + " " + entry.Action + ", "
	}
	if want := "carol shadow, carol unshadow, bob shadow, alice shadow, carol ban, carol unban, bob ban, alice ban, carol limit, carol unlimit, bob limit, alice limit, "; who != want {
		t.Errorf("got the journal %s, want %s", who, want)
	}
}
