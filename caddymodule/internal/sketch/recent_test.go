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

// count counts a request as the handler does.
func (r *Recent) count(kind Kind, key string, addr netip.Addr, random *rand.Rand) {
	if weight := r.Weight(kind, random.Uint64()); weight > 0 {
		r.Add(kind, key, addr, weight)
	}
}

func TestAFewRequestsAreCountedExactly(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		r.count(Admitted, fmt.Sprint("k", i%3), clientAddr(i%3), random)
		if i%4 == 0 {
			r.count(Refused, "k0", clientAddr(0), random)
		}
	}
	got := r.Top(ByKey, 2)
	want := []Sender{{"k0", 59, 25, false}, {"k1", 33, 0, false}}
	check.That(t, slices.Equal(got.Busiest, want) && got.Admitted == 100 && got.Refused == 25, "got %+v, want the busiest %v, 100 admitted and 25 refused", got, want)
	check.Slices(t, got.MostRefused, []Sender{{"k0", 59, 25, false}}, "most refused")
	check.Slices(t, r.Top(By24, 2).Busiest, []Sender{{"10.0.0.0/24", 125, 25, false}}, "by /24, want all requests of 10.0.0.0/24")
	check.Equal(t, r.Top(ByAddress, 1).Busiest[0].Name, "10.0.0.0", "by address")
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
				if i%(requests/3+1) == 0 {
					r.Turn(noon)
				}
				client := int(clients.Uint64())
				key := fmt.Sprint(client)
				came[key]++
				r.count(Admitted, key, clientAddr(client), random)
			}
			got := r.Top(ByKey, 20)
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
		r.count(Admitted, client.String(), client, random)
	}
	got := r.Top(By16, 1).Busiest
	check.That(t, len(got) == 1 && got[0].Name == "198.51.0.0/16" && got[0].Requests >= 15_000 && got[0].Requests <= 25_000, "got %v, want about 20000 requests of 198.51.0.0/16", got)
}

func TestWhatIsOlderThanAMinuteIsForgotten(t *testing.T) {
	var r Recent
	for i, want := range [][]string{{"0"}, {"0", "1"}, {"0", "1", "2"}, {"0", "1", "2", "3"}, {"1", "2", "3", "4"}, {"2", "3", "4", "5"}} {
		r.Turn(noon.Add(time.Duration(i) * Span))
		r.Add(Refused, fmt.Sprint(i), clientAddr(i), 1)
		got := r.Top(ByKey, 20)
		var names []string
		for _, s := range got.MostRefused {
			names = append(names, s.Name)
		}
		check.Slices(t, names, want, "in part %d", i)
		since := noon.Add(max(0, time.Duration(i-parts+1)) * Span)
		check.That(t, got.Since.Equal(since), "in part %d, counted since: got %v, want %v", i, got.Since, since)
	}
}

// TestARecentIsBounded in a flood of keys.
func TestARecentIsBounded(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 50_000 {
		if i%20_000 == 0 {
			r.Turn(noon)
		}
		r.count(Refused, fmt.Sprint(i), clientAddr(i), random)
	}
	for i := range r.part {
		tally := &r.part[i].tallies[Refused]
		if len(tally.keys.at) > standard || len(tally.nets[0].at) > standard || len(tally.nets[1].at) > standard {
			t.Errorf("got %d keys and %d addresses, want at most %d", len(tally.keys.at), len(tally.nets[0].at), standard)
		}
	}
	got := r.Top(ByKey, 1).Refused
	check.That(t, got >= 45_000 && got <= 55_000, "got %d refusals, want about 50000", got)
}

// TestRequestsAfterAFloodAreCountedExactly, though of those in the flood only a sample is.
func TestRequestsAfterAFloodAreCountedExactly(t *testing.T) {
	for _, kind := range []Kind{Admitted, Refused} {
		var r Recent
		random := rand.New(rand.NewPCG(1, 2))
		for range 500_000 {
			r.count(kind, "flood", clientAddr(1), random)
		}
		if got := r.part[0].tallies[kind]; got.samples > 20_000 || got.total < 450_000 || got.total > 550_000 {
			t.Errorf("counted %d of 500000 requests for %d, want less than 20000 for about all", got.samples, got.total)
		}
		r.Turn(noon)
		for range 3 {
			r.count(kind, "later", clientAddr(2), random)
		}
		got := r.Top(ByKey, 2).Busiest
		check.That(t, len(got) == 2 && got[1] == (Sender{"later", 3, 3 * int(kind), false}), "got %v, want 3 requests of later", got)
	}
}

// TestAFloodOfRefusalsLeavesAdmittedRequestsExact, because the samples are apart.
func TestAFloodOfRefusalsLeavesAdmittedRequestsExact(t *testing.T) {
	var r Recent
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 50_000 {
		r.count(Refused, "flood", clientAddr(1), random)
		if i%50 == 0 {
			r.count(Admitted, "people", clientAddr(2), random)
		}
	}
	check.Equal(t, r.Top(ByKey, 1).Admitted, 1000, "admitted requests")
}

func TestNetworksAreNamedByTheirFamily(t *testing.T) {
	var r Recent
	for _, text := range []string{"192.0.2.77", "64:ff9b::192.0.2.77", "2001:db8:1:2:3::4%eth0", "2001:db8:1:2:5::6"} {
		r.Add(Refused, "k", netip.MustParseAddr(text), 1)
	}
	r.Add(Refused, "k", netip.Addr{}, 1)
	for by, want := range map[Grouping][]string{
		ByAddress: {"192.0.2.77", "2001:db8:1:2::/64"},
		By24:      {"192.0.2.0/24", "2001:db8:1::/48"},
		By16:      {"192.0.0.0/16", "2001:db8::/32"},
	} {
		var names []string
		for _, s := range r.Top(by, 9).MostRefused {
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
		r.count(Admitted, fmt.Sprint(i), netip.Addr{}, random)
		if i%10 == 0 {
			r.count(Admitted, "busy", netip.Addr{}, random)
		}
	}
	busiest := r.Top(ByKey, 20).Busiest
	check.That(t, len(busiest) == 1 && busiest[0].Name == "busy" && busiest[0].Requests >= 300 && busiest[0].Requests <= 900, "got %v, want busy alone, with about 600 requests", busiest)
}

func TestFortyMillionRequestsInTwentySecondsAreCounted(t *testing.T) {
	var r Recent
	n := uint64(0)
	for range 40_000_000 {
		n++
		if w := r.Weight(Admitted, n); w > 0 {
			r.Add(Admitted, "k", clientAddr(1), w)
		}
	}
	got := r.Top(ByKey, 1).Admitted
	check.That(t, got >= 36_000_000 && got <= 44_000_000, "got %d admitted, want about 40 million; less is %d", got, r.less[0].Load())
}
