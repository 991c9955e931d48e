package leakybucket

import (
	"testing"
	"time"
)

func TestAddRoundsDown(t *testing.T) {
	for d, want := range map[time.Duration]Instant{
		0: 10, 1500: 11, -1: 9, -1000: 9, -1500: 8, -2000: 8, 1999: 11,
	} {
		if got := Instant(10).Add(d); got != want {
			t.Errorf("10 and %v: got %d, want %d", d, got, want)
		}
	}
}
