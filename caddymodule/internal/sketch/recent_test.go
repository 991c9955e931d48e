package sketch

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func clientAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// admit counts a request as the handler does.
func (r *Recent) admit(key string, addr netip.Addr, random *rand.Rand, now time.Time) {
	if weight := r.AdmittedWeight(random.Uint64()); weight > 0 {
		r.Add(false, key, addr, weight, now)
	}
}

// refuse does the same with a refused request.
func (r *Recent) refuse(key string, addr netip.Addr, random *rand.Rand, now time.Time) {
	if weight := r.RefusedWeight(random.Uint64(), now); weight > 0 {
		r.Add(true, key, addr, weight, now)
	}
}

func TestAFewRequestsAreCountedExactly(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		r.admit(fmt.Sprint("k", i%3), clientAddr(i%3), random, noon)
		if i%4 == 0 {
			r.refuse("k0", clientAddr(0), random, noon)
		}
	}
	got := r.Top(ByKey, 2, noon.Add(time.Second))
	want := []Sender{{"k0", 59, 25, false}, {"k1", 33, 0, false}}
	check.That(t, slices.Equal(got.Busiest, want) && got.Admitted == 100 && got.Refused == 25, "got %+v, want the busiest %v, 100 admitted and 25 refused", got, want)
	check.Slices(t, got.MostRefused, []Sender{{"k0", 59, 25, false}}, "most refused")
	check.Slices(t, r.Top(By24, 2, noon).Busiest, []Sender{{"10.0.0.0/24", 125, 25, false}}, "by /24, want all requests of 10.0.0.0/24")
	check.Equal(t, r.Top(ByAddress, 1, noon).Busiest[0].Name, "10.0.0.0", "by address")
}

// TestTheTopTenAreFoundAmongManyClients whose requests are distributed as those of real
// sites are: the n-th sends 1/n of what the first sends. Most requests are not counted.
func TestTheTopTenAreFoundAmongManyClients(t *testing.T) {
	for _, requests := range []int{3_000, 60_000, 300_000} {
		for seed := range uint64(3) {
			var r Recent
			random := rand.New(rand.NewPCG(seed, 7))
			clients := rand.NewZipf(random, 1.1, 1, 50_000)
			came := make(map[string]int)
			for i := range requests {
				client := int(clients.Uint64())
				key := fmt.Sprint(client)
				came[key]++
				r.admit(key, clientAddr(client), random, noon.Add(time.Duration(i)*time.Minute/time.Duration(requests)))
			}
			got := r.Top(ByKey, 20, noon.Add(time.Minute-1))
			for client := range 10 {
				i := slices.IndexFunc(got.Busiest, func(s Sender) bool { return s.Name == fmt.Sprint(client) })
				if i < 0 {
					t.Errorf("%d requests, seed %d: got %v, want client %d among them", requests, seed, got.Busiest, client)
					continue
				}
				share := float64(got.Busiest[i].Requests) / float64(came[fmt.Sprint(client)])
				check.That(t, share >= 0.5 && share <= 1.5, "%d requests, seed %d, client %d: got %v times as many as it made, want about as many", requests, seed, client, share)
			}
			share := float64(got.Admitted) / float64(requests)
			check.That(t, share >= 0.9 && share <= 1.1, "%d requests, seed %d: got %d, want about as many", requests, seed, got.Admitted)
		}
	}
}

// TestANetworkOfManyClientsIsFound although none of its clients is busy.
func TestANetworkOfManyClientsIsFound(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 100_000 {
		client := netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
		if i%5 > 0 {
			client = netip.AddrFrom4([4]byte{byte(1 + i%200), byte(i >> 16), byte(i >> 8), byte(i)})
		}
		r.admit(client.String(), client, random, noon)
	}
	got := r.Top(By16, 1, noon).Busiest
	check.That(t, len(got) == 1 && got[0].Name == "198.51.0.0/16" && got[0].Requests >= 15_000 && got[0].Requests <= 25_000, "got %v, want about 20000 requests of 198.51.0.0/16", got)
}

func TestWhatIsOlderThanAMinuteIsForgotten(t *testing.T) {
	var r Recent
	r.Add(true, "old", clientAddr(1), 1, noon)
	r.Add(true, "young", clientAddr(2), 1, noon.Add(50*time.Second))
	names := func(after time.Duration) (names []string) {
		for _, s := range r.Top(ByKey, 20, noon.Add(after)).MostRefused {
			names = append(names, s.Name)
		}
		return names
	}
	for after, want := range map[time.Duration][]string{
		60 * time.Second:  {"old", "young"},
		79 * time.Second:  {"old", "young"},
		80 * time.Second:  {"young"},
		119 * time.Second: {"young"},
		120 * time.Second: nil,
		time.Hour:         nil,
	} {
		check.Slices(t, names(after), want, "after %v", after)
	}
	since := r.Top(ByKey, 1, noon.Add(70*time.Second)).Since
	check.That(t, since.Equal(noon), "counted since: got %v, want %v", since, noon)
	since = r.Top(ByKey, 1, noon.Add(time.Hour)).Since
	check.That(t, since.Equal(noon.Add(59*time.Minute)), "an hour later, counted since: got %v, want a minute before", since)
	r.Add(true, "new", clientAddr(1), 1, noon.Add(time.Hour))
	check.Slices(t, names(time.Hour), []string{"new"}, "want new alone")
}

// TestARecentIsBounded in a flood of keys.
func TestARecentIsBounded(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 50_000 {
		r.refuse(fmt.Sprint(i), clientAddr(i), random, noon.Add(time.Duration(i)*time.Minute/50_000))
	}
	for i := range r.windows {
		tally := &r.windows[i].tallies[1]
		if len(tally.keys.at) > counted || len(tally.nets[0].at) > counted || len(tally.nets[1].at) > counted {
			t.Errorf("got %d keys and %d addresses, want at most %d", len(tally.keys.at), len(tally.nets[0].at), counted)
		}
	}
	got := r.Top(ByKey, 1, noon.Add(time.Minute-1)).Refused
	check.That(t, got >= 45_000 && got <= 55_000, "got %d refusals, want about 50000", got)
}

// TestRefusalsAfterAFloodAreCountedExactly, though of those in the flood only a sample is.
func TestRefusalsAfterAFloodAreCountedExactly(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for range 500_000 {
		r.refuse("flood", clientAddr(1), random, noon)
	}
	if got := r.windows[partOf(noon)%parts].tallies[1]; got.samples > 20_000 || got.total < 450_000 || got.total > 550_000 {
		t.Errorf("counted %d of 500000 refusals for %d, want less than 20000 for about all", got.samples, got.total)
	}
	for range 3 {
		r.refuse("later", clientAddr(2), random, noon.Add(span))
	}
	got := r.Top(ByKey, 2, noon.Add(span)).MostRefused
	check.That(t, len(got) == 2 && got[1] == (Sender{"later", 3, 3, false}), "got %v, want 3 refusals of later", got)
}

// TestAdmittedRequestsAfterABurstAreCountedExactly, once there was a rest.
func TestAdmittedRequestsAfterABurstAreCountedExactly(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for range 500_000 {
		r.admit("burst", clientAddr(1), random, noon)
	}
	r.Rest(noon.Add(span - 1))
	check.That(t, r.less[0].Load() != 0, "got each request counted before the part is over")
	r.Rest(noon.Add(span))
	for range 3 {
		r.admit("later", clientAddr(2), random, noon.Add(span))
	}
	got := r.Top(ByKey, 2, noon.Add(span)).Busiest
	check.That(t, len(got) == 2 && got[1] == (Sender{"later", 3, 0, false}), "got %v, want 3 requests of later", got)
}

// TestAFloodOfRefusalsLeavesAdmittedRequestsExact, because the samples are apart.
func TestAFloodOfRefusalsLeavesAdmittedRequestsExact(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 50_000 {
		r.refuse("flood", clientAddr(1), random, noon)
		if i%50 == 0 {
			r.admit("people", clientAddr(2), random, noon)
		}
	}
	check.Equal(t, r.Top(ByKey, 1, noon).Admitted, 1000, "admitted requests")
}

func TestNetworksAreNamedByTheirFamily(t *testing.T) {
	var r Recent
	for _, text := range []string{"192.0.2.77", "64:ff9b::192.0.2.77", "2001:db8:1:2:3::4%eth0", "2001:db8:1:2:5::6"} {
		r.Add(true, "k", netip.MustParseAddr(text), 1, noon)
	}
	r.Add(true, "k", netip.Addr{}, 1, noon)
	for by, want := range map[Grouping][]string{
		ByAddress: {"192.0.2.77", "2001:db8:1:2::/64"},
		By24:      {"192.0.2.0/24", "2001:db8:1::/48"},
		By16:      {"192.0.0.0/16", "2001:db8::/32"},
	} {
		var names []string
		for _, s := range r.Top(by, 9, noon).MostRefused {
			check.Equal(t, s.Refused, 2, "%s: refusals", s.Name)
			names = append(names, s.Name)
		}
		slices.Sort(names)
		check.That(t, slices.Equal(names, want), "got %q, want %q", names, want)
	}
}

// A sample of many clients with one request each names ones by chance, and with many times
// their requests.
func TestNobodyIsListedOfWhomASampleSaysTooLittle(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 6000 {
		r.admit(fmt.Sprint(i), netip.Addr{}, random, noon)
		if i%10 == 0 {
			r.admit("busy", netip.Addr{}, random, noon)
		}
	}
	busiest := r.Top(ByKey, 20, noon).Busiest
	check.That(t, len(busiest) == 1 && busiest[0].Name == "busy" && busiest[0].Requests >= 300 && busiest[0].Requests <= 900, "got %v, want busy alone, with about 600 requests", busiest)
}

func TestFortyMillionRequestsInTwentySecondsAreCounted(t *testing.T) {
	var r Recent
	n := uint64(0)
	for range 40_000_000 {
		n++
		if w := r.AdmittedWeight(n); w > 0 {
			r.Add(false, "k", clientAddr(1), w, noon)
		}
	}
	got := r.Top(ByKey, 1, noon).Admitted
	check.That(t, got >= 36_000_000 && got <= 44_000_000, "got %d admitted, want about 40 million; less is %d", got, r.less[0].Load())
}
