package tests

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// TestABatchOfAThousandRowsCostsAThousand and reaches the application as it
// was sent.
func TestABatchOfAThousandRowsCostsAThousand(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	header >Level {http.throttle.level}
	throttle {
		zone imports {
			limit 2500 1/d
			cost body_items rows
		}
	}
	%s
}`, port, rackSite(t).directives)})
	url := fmt.Sprintf("http://127.0.0.1:%d/import", port)
	eachProtocol(t, func(t *testing.T, protocol string) {
		v := newVisitor(t, protocol)
		level := 0.0
		for _, c := range []struct {
			rows, status int
		}{{1000, 200}, {1000, 200}, {1000, 429}, {1, 200}, {400, 200}, {2501, 429}} {
			batch := batchOf(t, c.rows)
			a := v.post(t, url, "application/json", batch)
			if a.status != c.status {
				t.Errorf("%d rows at level %v: got %d, want %d", c.rows, level, a.status, c.status)
			}
			if a.status != 200 {
				continue
			}
			level += float64(c.rows)
			if got, _ := strconv.ParseFloat(a.header.Get("Level"), 64); !near(got, level) {
				t.Errorf("%d rows: got level %v, want %v", c.rows, got, level)
			}
			if want := fmt.Sprintf("%x", sha256.Sum256([]byte(batch))); strings.TrimSpace(a.body) != want {
				t.Errorf("%d rows: got SHA-256 %q at the application, want %s", c.rows, a.body, want)
			}
		}
	})
}

// batchOf is an import as scripts send it, below 64 KiB.
func batchOf(t *testing.T, rows int) string {
	t.Helper()
	type row struct {
		ID int `json:"id"`
	}
	batch := struct {
		Comment string `json:"comment"`
		Rows    []row  `json:"rows"`
	}{Comment: `"rows":[1,2,3]`}
	for n := range rows {
		batch.Rows = append(batch.Rows, row{n})
	}
	text, err := json.Marshal(batch)
	if err != nil || len(text) > 64<<10 {
		t.Fatalf("got a batch of %d bytes and %v, want it below 64 KiB", len(text), err)
	}
	return string(text)
}
