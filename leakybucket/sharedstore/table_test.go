package sharedstore

import (
	"fmt"
	"testing"
	"time"
)

func TestATableKeepsNoMoreThanItMayAndNothingThatHasEnded(t *testing.T) {
	table, now := newTable[int](3), time.Now()
	name := func(i int) bucket { return bucket{zone: "z", key: fmt.Sprint(i)} }
	for i := range 3 {
		if !table.Put(name(i), i, now.Add(time.Duration(i+1)*time.Minute), now) {
			t.Fatalf("got no room for entry %d of 3", i)
		}
	}
	if table.Put(name(3), 3, now.Add(time.Hour), now) {
		t.Error("got room in a full table")
	}
	if !table.Put(name(1), 10, now.Add(2*time.Minute), now) {
		t.Error("got no room for a bucket that is known")
	}
	now = now.Add(time.Minute)
	if v, found := table.Get(name(0), now); found {
		t.Errorf("got %d after its end", v)
	}
	if v, _ := table.Get(name(1), now); v != 10 {
		t.Errorf("got %d, want the later value", v)
	}
	if !table.Put(name(3), 3, now.Add(time.Hour), now) {
		t.Error("got no room in place of what has ended")
	}
	if names := table.Names(now); len(names) != 3 {
		t.Errorf("got %v, want three", names)
	}
	table.Update(name(3), now, func(v int, found bool) (int, time.Time, bool) {
		if v != 3 || !found {
			t.Errorf("got %d, %v, want 3", v, found)
		}
		return 0, now, false
	})
	table.Delete(name(1))
	if table.Empty() {
		t.Error("got an empty table, want one entry")
	}
	if names := table.Names(now.Add(2 * time.Minute)); len(names) > 0 || !table.Empty() {
		t.Errorf("got %v after all have ended", names)
	}
}
