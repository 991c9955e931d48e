package tests

import (
	"fmt"
	"strconv"
	"testing"
)

// level returns the level of settledByHeader's bucket, even soon after a reload.
func (v *visitor) level(t *testing.T, port int) float64 {
	t.Helper()
	var a answer
	eventually(t, "an answer", func() bool {
		var err error
		a, err = v.try("GET", fmt.Sprintf("http://127.0.0.1:%d/level", port))
		return err == nil
	})
	level, err := strconv.ParseFloat(a.header.Get("Level"), 64)
	if a.status != 200 || err != nil {
		t.Fatalf("got %d and level %q, want a number", a.status, a.header.Get("Level"))
	}
	return level - 1 // which this request has reserved
}
