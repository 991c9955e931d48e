package tests

import (
	"math"
	"net/http"
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

// near allows for the little that leaks during a test.
func near(got, want float64) bool { return math.Abs(got-want) < 0.01 }
