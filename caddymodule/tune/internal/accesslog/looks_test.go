package accesslog

import (
	"fmt"
	"testing"
)

func TestUserAgentsAreToldApartUpToABound(t *testing.T) {
	var agents Agents
	add := func(agent string) { agents.Add(&Request{agent: agent}) }
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

func TestRoutesThatClientsMakeUpHideNoFrequentOne(t *testing.T) {
	var routes Routes
	for i := range 4 * MostRoutes {
		routes.Add(fmt.Sprint("/made/up/", i))
		if i%10 == 0 {
			routes.Add("/login")
		}
	}
	top := routes.Top(2)
	if len(top) != 2 || top[0].Key != "/login" || top[0].AtLeast < 3*MostRoutes/10 || top[0].AtLeast > 4*MostRoutes/10 {
		t.Errorf("got %v first, want /login", top)
	}
	if n := routes.Count(); n < 4*MostRoutes*95/100 || n > 4*MostRoutes*105/100 {
		t.Errorf("got %d routes, want about %d", n, 4*MostRoutes)
	}
}

func TestFewRoutesAreCountedExactly(t *testing.T) {
	var routes Routes
	if routes.Count() != 0 || len(routes.Top(10)) != 0 {
		t.Error("got routes before the first")
	}
	for i := range MostRoutes - 1 {
		for range 1 + i%3 {
			routes.Add(fmt.Sprint("/page/", i))
		}
	}
	if n, top := routes.Count(), routes.Top(1)[0]; n != MostRoutes-1 || top.Key != "/page/1001" && top.AtLeast != 3 {
		t.Errorf("got %d routes, the first %v", n, top)
	}
}
