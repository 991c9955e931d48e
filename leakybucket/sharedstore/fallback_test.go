package sharedstore

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func TestLocalGoesOnWithTheLevelsLastSeenInTheSharedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c := hourly(10, 1)
		n.wantAdmitted(6, c, 6)
		n.remote.down.Store(true)
		n.wantAdmitted(7, c, 4)
		c.Key = "never seen"
		n.wantAdmitted(11, c, 10)
	})
}

func TestEveryNodeHasItsShareOfALimitInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 4})
		c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 20, Leak: 4}, Cost: 1}
		n.wantAdmitted(8, c, 8)
		n.remote.down.Store(true)
		n.wantAdmitted(4, c, 3) // a quarter of 20, of which a quarter of 8 is taken
		<-time.After(3 * time.Second)
		n.wantAdmitted(4, c, 3)
		<-time.After(5 * time.Second)
		c.Cost = 3
		n.wantAdmitted(2, c, 1)
	})
}

func TestAShareHoldsAtLeastTheDearestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 10, Zone: func(string) ZoneOptions { return ZoneOptions{MaxCost: 8} }})
		n.remote.down.Store(true)
		c, d := n.take(hourly(20, 8))
		if !d.Poured || c.Limit.Capacity != 8 || c.Cost != 8 {
			t.Errorf("got %+v of %+v, want it poured into a bucket of 8", d, c)
		}
		n.wantAdmitted(1, hourly(20, 8), 0)
	})
}

// An unread body costs the capacity by default, and 13 items of 30 are more than
// one of three nodes has. Neither could ever be made before.
func TestAComputedCostAboveTheShareCountsAsTheShare(t *testing.T) {
	for _, test := range []struct {
		cost, want float64 // of a capacity of 30 on three nodes
		fits       bool
	}{
		{0, 0, true},
		{9, 9, true},
		{10, 10, true},
		{13, 10, true},
		{30, 10, true},
		{30.5, 30.5, false},
		{1e12, 1e12, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Nodes: 3})
			n.remote.down.Store(true)
			c, d := n.take(hourly(30, test.cost))
			if c.Cost != test.want || d.Fits != test.fits || d.Poured != test.fits || c.Limit.Oversize(c.Cost) == test.fits {
				t.Errorf("cost %v: got %v, fits %v, poured %v, want %v and %v", test.cost, c.Cost, d.Fits, d.Poured, test.want, test.fits)
			}
			if c, d = n.take(hourly(30, 13)); test.cost == 13 && (d.Fits || c.Limit.TimeToFit(d.Level, c.Cost) > 11*time.Hour*3) {
				t.Errorf("the next one: got fits %v, and in %v, want it refused for 30h", d.Fits, c.Limit.TimeToFit(d.Level, c.Cost))
			}
		})
	}
}

func TestACeilingIsThatOfTheShare(t *testing.T) {
	const nodes, longest = 4, 3 * time.Second
	whole := leakybucket.Limit{Capacity: 40, Leak: 4}
	share := leakybucket.Limit{Capacity: 10, Leak: 1}
	for _, test := range []struct{ undelayed, cost float64 }{{0, 1}, {0, 5}, {8, 1}, {8, 2}, {20, 1}, {36, 4}} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Nodes: nodes})
			n.remote.down.Store(true)
			c, _ := n.take(leakybucket.Charge{
				Zone: "z", Key: "k", Limit: whole, Debt: 20, Undelayed: test.undelayed,
				Cost: test.cost, Ceiling: whole.Ceiling(test.cost, test.undelayed, longest),
			})
			want := share.Ceiling(test.cost, test.undelayed/nodes, longest)
			if c.Ceiling != want || c.Undelayed != test.undelayed/nodes || c.Limit != share || c.Debt != 5 {
				t.Errorf("undelayed %v, cost %v: got %+v, want a ceiling of %v", test.undelayed, test.cost, c, want)
			}
		})
	}
}

// The store tells of a block only while it runs.
func TestALadderIsClimbedOnInAnOutage(t *testing.T) {
	ladder := &leakybucket.Ladder{Steps: []time.Duration{time.Minute, 10 * time.Minute}}
	for _, nodes := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Nodes: nodes})
			c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1, Block: ladder}
			n.wantAdmitted(2, c, 1)
			<-time.After(time.Minute + time.Second)
			n.wantAdmitted(1, c, 1)
			n.remote.down.Store(true)
			if _, d := n.take(c); d.BlockedUntil.Sub(d.At) != 10*time.Minute || d.Step != 1 {
				t.Errorf("%d nodes: got a block of %v, step %d, want 10m, step 1", nodes, d.BlockedUntil.Sub(d.At), d.Step)
			}
		})
	}
}

// A client on the second step got 200 as soon as the store was down.
func TestABlockOfAnyStepHoldsInAnOutage(t *testing.T) {
	ladder := &leakybucket.Ladder{Steps: []time.Duration{time.Minute, 10 * time.Minute}}
	for _, nodes := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Nodes: nodes})
			c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1, Block: ladder}
			n.wantAdmitted(2, c, 1)
			<-time.After(time.Minute + time.Second)
			n.wantAdmitted(2, c, 1)
			n.remote.down.Store(true)
			n.wantAdmitted(5, c, 0)
			<-time.After(9 * time.Minute)
			n.wantAdmitted(5, c, 0)
			if _, d := n.take(c); d.BlockedUntil.Sub(d.At) != time.Minute || d.Step != 1 {
				t.Errorf("%d nodes: got %v left of step %d, want 1m of step 1", nodes, d.BlockedUntil.Sub(d.At), d.Step)
			}
			<-time.After(time.Minute)
			n.wantAdmitted(1, c, 1)
		})
	}
}

func TestPoliciesAreEachZonesOwn(t *testing.T) {
	named := map[byte]Policy{'l': Local, 'a': Allow, 'd': Deny}
	for _, test := range []struct {
		about    string
		policies string // of zones 0, 1, 2
		shadows  string // which of them are
		requests int
		want     int // how many of them no enforced zone refuses
		levels   [3]float64
	}{
		{"local", "l", "", 9, 4, [3]float64{4}},
		{"allow", "a", "", 9, 9, [3]float64{}},
		{"deny", "d", "", 9, 0, [3]float64{}},
		{"deny in shadow", "d", "0", 9, 9, [3]float64{}},
		{"local in shadow", "l", "0", 9, 9, [3]float64{4}},
		{"local and allow", "la", "", 9, 4, [3]float64{4}},
		{"allow and local", "al", "", 9, 4, [3]float64{0, 4}},
		{"local and deny", "ld", "", 9, 0, [3]float64{}},
		{"a shadow and deny", "ld", "0", 9, 0, [3]float64{}},
		{"local and deny in shadow", "ld", "1", 9, 4, [3]float64{4}},
		{"local beside deny in shadow", "lld", "12", 9, 4, [3]float64{4, 0}},
		{"all of them", "lad", "2", 9, 4, [3]float64{4}},
		{"two local", "ll", "", 9, 4, [3]float64{4, 4}},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Zone: func(zone string) ZoneOptions {
				return ZoneOptions{Policy: named[test.policies[zone[0]-'0']]}
			}})
			n.remote.down.Store(true)
			passed := 0
			var charges []leakybucket.Charge
			for range test.requests {
				charges = nil
				for i := range test.policies {
					c := hourly(4, 1)
					c.Zone = string(rune('0' + i))
					c.Shadow = leakybucket.ShadowIf(strings.Contains(test.shadows, c.Zone))
					charges = append(charges, c)
				}
				refused := false
				_, decisions := n.ask(charges...)
				for i, d := range decisions {
					refused = refused || !d.Fits && charges[i].Shadow == 0
					if undecided := test.policies[i] != 'l'; d.Undecided != undecided || undecided && d.Poured || !FellBack(&d) {
						t.Errorf("%s, zone %d: got %+v, want undecided %v", test.about, i, d, undecided)
					}
				}
				if !refused {
					passed++
				}
			}
			if passed != test.want {
				t.Errorf("%s: got %d requests that pass, want %d", test.about, passed, test.want)
			}
			for i := range charges {
				if got := n.backend.localLevel(&charges[i]); !near(got, test.levels[i]) {
					t.Errorf("%s, zone %d: got a level of %v here, want %v", test.about, i, got, test.levels[i])
				}
				if charges[i].Probe {
					t.Errorf("%s, zone %d: got a probe, want the charge as it was", test.about, i)
				}
			}
		})
	}
}

func TestAPolicyHasTheNameItIsParsedFrom(t *testing.T) {
	for _, name := range []string{"local", "allow", "deny"} {
		if p, err := ParsePolicy(name); err != nil || p.String() != name {
			t.Errorf("%s: got %v, %v", name, p, err)
		}
	}
	if _, err := ParsePolicy("block"); err == nil {
		t.Error("block: got no error, want one")
	}
}
