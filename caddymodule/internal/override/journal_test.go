package override

import (
	"fmt"
	"testing"
)

func TestAJournalKeepsTheLastChanges(t *testing.T) {
	var j Journal
	if got := j.List(); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
	for i := range journaled + 5 {
		j.Add(Change{Of: fmt.Sprint(i)})
	}
	got := j.List()
	if len(got) != journaled || got[0].Of != fmt.Sprint(journaled+4) || got[journaled-1].Of != "5" {
		t.Errorf("got %d from %v to %v, want %d, the last first", len(got), got[0].Of, got[len(got)-1].Of, journaled)
	}
	j.Add(make([]Change, 2*journaled)...)
	if got := j.List(); len(got) != journaled || got[0].Of != "" {
		t.Errorf("got %d, want only the last %d", len(got), journaled)
	}
}
