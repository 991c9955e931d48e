package caddymodule

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// noteBlock tells a table of a block that has begun.
func noteBlock(table *blockTable, key string, length time.Duration) {
	table.note(chargeOf("z", key), begun(length))
}

func chargeOf(zone, key string) *leakybucket.Charge {
	return &leakybucket.Charge{Zone: zone, Key: key}
}

// begun is the decision that begins a block.
func begun(length time.Duration) *leakybucket.Decision {
	return &leakybucket.Decision{BlockedUntil: leakybucket.Instant(length.Microseconds()), Began: true}
}

func TestTheTableOfBlocksIsBoundedAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := new(blockTable)
		for i := range mostKept + 1000 {
			noteBlock(table, fmt.Sprint(i), time.Minute)
		}
		if got := len(table.blocks); got != mostKept {
			t.Errorf("got %d blocks, want %d", got, mostKept)
		}
		<-time.After(time.Minute)
		noteBlock(table, "late", time.Minute)
		if got := len(table.blocks); got != 1 {
			t.Errorf("got %d blocks after a minute, want the new one alone", got)
		}
		if _, found := table.find(nil, nil, *chargeOf("z", "late")); !found {
			t.Error("the new block is not found")
		}
		<-time.After(time.Minute)
		if _, found := table.find(nil, nil, *chargeOf("z", "late")); found || table.some.Load() {
			t.Errorf("got found %v, some %v after a minute, want neither", found, table.some.Load())
		}
	})
}

// A flood that fills the table must not make every further block search it.
func TestAFullTableIsNotSearchedForEveryBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := new(blockTable)
		for i := range mostKept {
			noteBlock(table, fmt.Sprint(i), time.Hour)
		}
		// Each search takes milliseconds.
		for i := range 200_000 {
			noteBlock(table, fmt.Sprint("more", i), time.Hour)
		}
	})
}
