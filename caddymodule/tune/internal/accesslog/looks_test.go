package accesslog

import (
	"fmt"
	"testing"
)

func TestUserAgentsAreToldApartUpToABound(t *testing.T) {
	var agents Agents
	add := func(agent string) { agents.Add(&Request{Agent: agent}) }
	for _, agent := range []string{"a", "b", "a", ""} {
		add(agent)
	}
	if n := agents.Count(); n != 3 {
		t.Errorf("got %d, want 3", n)
	}
	for i := range 2 * MostAgents {
		add(fmt.Sprint("made up ", i))
	}
	if n := agents.Count(); n != MostAgents {
		t.Errorf("got %d of many, want %d", n, MostAgents)
	}
}
