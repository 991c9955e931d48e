package pgstore

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// documented returns the statement in docs/several-caddys.md that begins with a word.
func documented(t *testing.T, word, table string) string {
	t.Helper()
	page := check.Must(os.ReadFile("../../docs/several-caddys.md"))(t)
	found := regexp.MustCompile(`(?m)^psql shop -c "(` + word + ` .*)"$`).FindStringSubmatch(string(page))
	if found == nil {
		t.Fatalf("the page has no statement %s", word)
	}
	return strings.ReplaceAll(found[1], "throttle_buckets", table)
}

func TestTheDocumentedStatementsShowAndFreeABlockedClient(t *testing.T) {
	server, table := sharedServer(t), unique("documented")
	s := openStore(t, patient(server.URL()), Options{Table: table, OnError: failOn(t)})
	c := charge("203.0.113.7", 900)
	c.Zone, c.Block = "login", &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
	mustTake(t, s, c)
	if d := mustTake(t, s, c); d.Fits || d.BlockedUntil == 0 {
		t.Fatalf("got %+v, want a blocked bucket", d)
	}
	check.Equal(t, server.Text(t, "SELECT convert_from FROM ("+documented(t, "SELECT", table)+") AS names"), ":login/203.0.113.7", "the name")
	server.Exec(t, documented(t, "DELETE", table))
	if d := mustTake(t, s, c); !d.Poured || d.Level != 0 {
		t.Errorf("got %+v, want an empty bucket", d)
	}
}
