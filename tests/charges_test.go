package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// post sends a body of this type.
func (v *visitor) post(t *testing.T, url, contentType, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	a, err := v.do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	return a
}

const urlencoded = "application/x-www-form-urlencoded"

// charged is the charge of a request in an access log.
type charged struct {
	Status   int
	Throttle *struct {
		Zone, Decision string
		Cost, Level    float64
		Settled        *float64
	}
}

// chargeLog is an access log and the directive that writes it.
type chargeLog struct{ file, directive string }

func newChargeLog(t *testing.T) chargeLog {
	t.Helper()
	file := filepath.Join(t.TempDir(), "access.log")
	return chargeLog{file, "log {\n output file " + file + "\n }"}
}

// wait waits until n requests have been settled and logged, and returns them in
// the order in which they ended.
func (l chargeLog) wait(t *testing.T, n int) []charged {
	t.Helper()
	var text string
	eventually(t, fmt.Sprintf("%d lines in the access log", n), func() bool {
		data, _ := os.ReadFile(l.file)
		text = string(data)
		return strings.Count(text, "\n") >= n
	})
	var all []charged
	for line := range strings.Lines(text) {
		var c charged
		if err := json.Unmarshal([]byte(line), &c); err != nil || c.Throttle == nil {
			t.Fatalf("parsing %s: got %v, want a line with what was charged", line, err)
		}
		all = append(all, c)
	}
	return all
}

// near allows for the little that leaks during a test.
func near(got, want float64) bool { return math.Abs(got-want) < 0.01 }
