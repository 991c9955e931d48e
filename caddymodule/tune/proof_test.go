package tune_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// madeLogs are four, or ten with TEST_LONG and two with -short, besides those of the folder that
// the environment variable TUNING_LOGS names.
func madeLogs(t *testing.T) []string {
	logs := check.Must(filepath.Glob(filepath.Join(os.Getenv("TUNING_LOGS"), "*.log")))(t)
	logs = append(logs, writeLog(t, mixedLines()...))
	step := uint64(4)
	if os.Getenv("TEST_LONG") != "" {
		step = 1
	}
	for seed := check.OrShort[uint64](0, 8); seed < 9; seed += step {
		logs = append(logs, writeLog(t, made(seed, 1).lines...))
	}
	return logs
}

// A bruteKey is what brute force knows of a client.
type bruteKey struct {
	pages  []int64 // when they were asked for, in microseconds
	assets int
	agents map[string]bool // whether it names a robot
	people int             // whom it looks like: each user agent of many is one
}

// A bruteLeak is a limit's leak, as so many in so many seconds.
type bruteLeak struct{ n, seconds int64 }

// refusals returns how many requests of the key a limit refuses, and the highest level without
// one, in requests. It counts in whole millionths.
func (l bruteLeak) refusals(times []int64, capacity int64) (refused int, peak int64) {
	one := l.seconds * 1e6
	level, last := int64(0), int64(0)
	for _, at := range times {
		level, last = max(0, level-l.n*(at-last)), at
		if capacity > 0 && level+one > capacity*one {
			refused++
			continue
		}
		level += one
		peak = max(peak, (level+one-1)/one)
	}
	return refused, peak
}

type bruteAnswer struct {
	keys, people, requests, assets int
	points                         [][4]int // capacity; refused clients, people and requests
	leak, burst                    int
	refused                        [3]int // by the burst
}

var (
	bruteLine  = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S*)[^"]*" \d+ \S+(?: "(?:[^"\\]|\\.)*" "((?:[^"\\]|\\.)*)")?`)
	bruteAsset = regexp.MustCompile(`(?i)^[^?]*\.(css|js|mjs|map|png|jpg|jpeg|gif|webp|avif|svg|ico|bmp|woff|woff2|ttf|otf|eot|mp3|mp4|webm|ogg)(\?.*)?$`)
	bruteRobot = regexp.MustCompile(`(?i)bot|crawl|spider|slurp|scrap|fetch|feed|archiv|monitor|preview|https?://|^curl|^wget|python|^java/|go-http|okhttp|libwww|axios|node|inspectiontool|mediapartners|^-$`)
)

// bruteKeys reads a log. Clients without an address are one.
func bruteKeys(data string) map[string]*bruteKey {
	keys := map[string]*bruteKey{"@share": {agents: make(map[string]bool)}}
	for line := range strings.Lines(data) {
		f := bruteLine.FindStringSubmatch(line)
		if f == nil || f[3] == "CONNECT" || f[4] == "*" {
			continue
		}
		at, _ := time.Parse("02/Jan/2006:15:04:05 -0700", f[2])
		if addr, err := netip.ParseAddr(f[1]); err == nil && !addr.Is4() || err != nil && len(f[1]) < 4 { // a name of a host is a client of its own
			f[1] = "@share"
		}
		k := keys[f[1]]
		if k == nil {
			k = &bruteKey{agents: make(map[string]bool)}
			keys[f[1]] = k
		}
		if len(k.agents) < 64 {
			k.agents[f[5]] = bruteRobot.MatchString(f[5])
		}
		if (f[3] == "GET" || f[3] == "HEAD") && bruteAsset.MatchString(f[4]) && !strings.Contains(strings.SplitN(f[4], "?", 2)[0], ".php") {
			k.assets++
		} else {
			k.pages = append(k.pages, at.UnixMicro())
		}
	}
	for name, k := range keys {
		robots := 0
		for _, robot := range k.agents {
			if robot {
				robots++
			}
		}
		if name != "@share" && k.assets >= 2 && k.assets*20 >= len(k.pages) && (robots == 0 || 2*robots < len(k.agents)) {
			if k.people = 1; len(k.agents) >= 5 && k.assets*4 >= len(k.pages) {
				k.people = len(k.agents)
			}
		}
		slices.Sort(k.pages)
	}
	return keys
}

var bruteLadder = []bruteLeak{{15, 3600}, {30, 3600}, {1, 60}, {2, 60}, {4, 60}, {8, 60}, {15, 60}, {30, 60}, {1, 1}, {2, 1}, {4, 1}, {8, 1}, {15, 1}}

// brute recommends a limit from keys by trying everything.
func brute(keys map[string]*bruteKey, spare float64) (a bruteAnswer) {
	for _, k := range keys {
		a.assets += k.assets
		if a.requests += len(k.pages); len(k.pages) == 0 {
			continue
		}
		if a.keys++; k.people > 0 {
			a.people++
		}
	}
	judged := func(l bruteLeak, capacity int64) (of [3]int) {
		for _, k := range keys {
			if n, _ := l.refusals(k.pages, capacity); n > 0 {
				of[0], of[2] = of[0]+1, of[2]+n
				if k.people > 0 {
					of[1]++
				}
			}
		}
		return of
	}
	best := 0
	for _, l := range bruteLadder {
		peaks := make(map[int64]float64) // people by peak
		all := 0.0
		for _, k := range keys {
			if len(k.pages) > 0 {
				_, peak := l.refusals(k.pages, 0)
				peaks[peak] += float64(k.people)
				all += float64(k.people)
			}
		}
		capacity, spared := int64(0), 0.0
		for spared < spare*all-1e-6 {
			capacity++
			spared += peaks[capacity]
		}
		capacity = max(20, capacity)
		of := judged(l, capacity)
		a.points = append(a.points, [4]int{int(capacity), of[0], of[1], of[2]})
		if capacity*l.seconds <= 600*l.n {
			best = max(best, of[2])
		}
	}
	for i, l := range bruteLadder {
		if p := a.points[i]; int64(p[0])*l.seconds <= 600*l.n && float64(p[3]) >= 0.95*float64(best) {
			a.leak = i
		}
	}
	l, least := bruteLadder[a.leak], a.points[a.leak]
	a.burst, a.refused = least[0], [3]int{least[1], least[2], least[3]}
	most := 600 * l.n / l.seconds
	for capacity := int64(least[0]); least[3] > 0 && capacity <= most; capacity++ {
		if digits := strings.TrimRight(fmt.Sprint(capacity), "0"); capacity == most || len(digits) == 1 && float64(capacity) >= 1.05*float64(least[0]) {
			if of := judged(l, capacity); float64(of[2]) >= 0.95*float64(least[3]) {
				a.burst, a.refused = int(capacity), of
			}
		}
	}
	return a
}

// TestARecommendationIsWhatBruteForceFinds, to the unit.
func TestARecommendationIsWhatBruteForceFinds(t *testing.T) {
	recommends, logs := 0, madeLogs(t)
	for _, log := range logs {
		keys := bruteKeys(string(check.Must(os.ReadFile(log))(t)))
		for _, spare := range []string{"99.9", "95"} {
			z := recommended(t, log, "--spare", spare).Zones[0]
			if unknown := len(keys["@share"].pages); 2*unknown > z.Requests && z.Caddyfile != "" {
				t.Errorf("%s: got\n%s\nwant no lines where %d of %d requests have no address", log, z.Caddyfile, unknown, z.Requests)
			}
			share := map[string]float64{"99.9": 0.999, "95": 0.95}[spare]
			want := brute(keys, share)
			if got := [4]int{z.Keys, z.PeopleKeys, z.Requests, z.Assets}; got != [4]int{want.keys, want.people, want.requests, want.assets} {
				t.Errorf("%s: got %v clients, people, requests and assets, want %d, %d, %d, %d", log, got, want.keys, want.people, want.requests, want.assets)
			}
			for i, p := range z.Units.Points {
				point := want.points[i]
				if i == want.leak {
					point = [4]int{want.burst, want.refused[0], want.refused[1], want.refused[2]}
				}
				got := [4]int{int(p.Capacity), p.RefusedKeys, p.RefusedPeople, p.RefusedRequests}
				check.That(t, got == point, "%s, spare %s, leak %s: got %v, want capacity, clients, people and requests %v", log, spare, p.Leak, got, point)
			}
			check.That(t, z.Units.Recommended == want.leak, "%s, spare %s: got leak %s, want the one of index %d", log, spare, z.Units.Best().Leak, want.leak)
			if z.Caddyfile != "" {
				recommends++
			}
		}
	}
	check.That(t, recommends >= len(logs), "got %d recommendations of %d logs, want one of each at least", recommends, len(logs))
}

// TestARecommendationIsStable: without 2% of the lines, at random, it is the same, or the same
// refusal.
func TestARecommendationIsStable(t *testing.T) {
	logs := madeLogs(t)
	if os.Getenv("TEST_LONG") == "" {
		logs = logs[:check.OrShort(2, 1)]
	}
	for _, log := range logs {
		data := check.Must(os.ReadFile(log))(t)
		answers, most := make(map[string]int), 0
		for seed := range uint64(12) {
			rng := rand.New(rand.NewPCG(seed, 2))
			var b strings.Builder
			for line := range strings.Lines(string(data)) {
				if rng.IntN(50) > 0 {
					b.WriteString(line)
				}
			}
			z := recommended(t, writeFile(t, "access.log", b.String())).Zones[0]
			answer := fmt.Sprint(z.Units.Best().Capacity, " ", z.Units.Best().Leak)
			if len(z.Withheld) > 0 {
				answer = regexp.MustCompile(`[\d.]+`).ReplaceAllString(strings.Join(z.Withheld, " "), "N")
			}
			answers[answer]++
			most = max(most, answers[answer])
		}
		check.That(t, most >= 11, "%s: got %v, want one answer 11 times of 12", filepath.Base(log), answers)
	}
}
