package tune_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// TestHashedAddressesAreKeys: each is a client of its own, in replay and recommend.
func TestHashedAddressesAreKeys(t *testing.T) {
	var b strings.Builder
	for n := range 30 {
		fmt.Fprintf(&b, `{"ts":%d.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"%[2]s","client_ip":"%[2]s","proto":"HTTP/1.1","method":"GET","host":"x","uri":"/"},"duration":0.1,"size":9,"status":200}`+"\n",
			logStart.Unix()+int64(n), []string{"b5d4045c", "12ca17b4", "c775e7b7"}[min(n%5, 2)])
	}
	log := writeFile(t, "access.log", b.String())
	found := recommended(t, log)
	z, most := found.Zones[0], found.Clients.Requests[0]
	check.That(t, z.Keys == 3 && most.Client == "c775e7b7" && most.Requests == 18, "got %d keys, the first %+v, want three, and c775e7b7 with 18 requests", z.Keys, most)
	r := ranJSON[tune.Report](t, "replay", "--config", zoneOf(t, "key client_ip method {\nplain\n}\nlimit 10 10/h"), log)
	if z := r.Zones[0]; z.Keys != 3 || len(z.Worst) != 1 || z.Worst[0].Key != "c775e7b7/GET" || z.Worst[0].Refused != 8 {
		t.Errorf("got %d keys, and %+v refused, want three, and eight of c775e7b7", z.Keys, z.Worst)
	}
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "requests with a hash or a name in the place of the address: each is a client of its own") || strings.Contains(notes, "without a client address") {
		t.Errorf("got the notes %s, want one on hashes", notes)
	}
}

// TestHiddenAddressesAreNone: whatever a log has in their place, such requests share one bucket.
func TestHiddenAddressesAreNone(t *testing.T) {
	var b strings.Builder
	for n := range 40 {
		fmt.Fprintf(&b, `{"ts":%d.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"%[2]s","client_ip":"%[2]s","proto":"HTTP/1.1","method":"GET","host":"x","uri":"/"},"duration":0.1,"size":9,"status":200}`+"\n",
			logStart.Unix()+int64(n), []string{"REDACTED", "-", "@", "unix:/run/site"}[n%4])
	}
	r := ranJSON[tune.Report](t, "replay", "--config", zoneOf(t, "limit 10 1/h"), writeFile(t, "access.log", b.String()))
	notes := strings.Join(r.Notes, "\n")
	check.That(t, strings.Contains(notes, "without a client address in the log") && !strings.Contains(notes, "the key of zone"), "got the notes %s", notes)
	z := r.Zones[0]
	check.That(t, z.Keys == 1 && len(z.Worst) == 1 && z.Worst[0].Key == "@share", "got %d keys, and %+v refused, want the shared bucket", z.Keys, z.Worst)
}

// TestTheOrderOfALogDoesNotMatter: a rotated log of two nodes gives the same answer however
// its parts come, by arguments or by cat.
func TestTheOrderOfALogDoesNotMatter(t *testing.T) {
	rng, requests := rand.New(rand.NewPCG(5, 6)), check.OrShort(24_000, 6000)
	for _, format := range []string{"caddy", "combined"} {
		var nodes [2][]string
		for n := range requests {
			since := time.Duration(n)*4*time.Second + time.Duration(2*n/requests)*24*time.Hour // half of them a day later
			at, took := logStart.Add(since), time.Duration(rng.ExpFloat64()*float64(time.Second)).Round(time.Microsecond)
			client, uri := fmt.Sprintf("198.51.100.%d", rng.IntN(200)), fmt.Sprintf("/page/%d", rng.IntN(50))
			if rng.IntN(2) == 0 {
				uri = "/style.css"
			} else if rng.IntN(3) > 0 {
				client = fmt.Sprintf("203.0.113.%d", rng.IntN(2))
			}
			line := combinedLine{since, client, "GET", uri, "Mozilla"}.String()
			if format == "caddy" {
				line = fmt.Sprintf(`{"ts":%.6f,"logger":"http.log.access","msg":"handled request","request":{"client_ip":%q,"proto":"HTTP/1.1","method":"GET","host":"x","uri":%q,"headers":{"User-Agent":["Mozilla"]}},"duration":%f,"size":9,"status":200}`+"\n",
					float64(at.Add(took).UnixMicro())/1e6, client, uri, took.Seconds())
			}
			node := rng.IntN(2)
			nodes[node] = append(nodes[node], line)
		}
		dir := t.TempDir()
		var names []string // in the order of the shell
		all := make(map[string]string)
		for node, lines := range nodes {
			for part, some := range slices.Collect(slices.Chunk(lines, len(lines)/12+1)) {
				name := filepath.Join(dir, fmt.Sprintf("node%d.log.%d", node, 12-part))
				all[name] = strings.Join(some, "")
				check.OK(t, os.WriteFile(name, []byte(all[name]), 0o600))
				names = append(names, name)
			}
		}
		slices.Sort(names)
		cat := ""
		for _, name := range names {
			cat += all[name]
		}
		lines := strings.SplitAfter(strings.TrimSpace(cat)+"\n", "\n")
		rng.Shuffle(len(lines)-1, func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		backwards := slices.Clone(names)
		slices.Reverse(backwards)
		orders := map[string][]string{
			"arguments, backwards": backwards,
			"cat":                  {writeFile(t, "cat.log", cat)},
			"node after node":      {writeFile(t, "nodes.log", strings.Join(append(slices.Clone(nodes[0]), nodes[1]...), ""))},
			"shuffled":             {writeFile(t, "shuffled.log", strings.Join(lines, ""))},
		}
		want := recommended(t, names[0], names[1:]...)
		replayed := ranJSON[tune.Report](t, append([]string{"replay", "--config", zoneOf(t, "limit 20 1/m")}, names...)...)
		if want.Zones[0].Caddyfile == "" || replayed.Zones[0].RefusedKeys == 0 {
			t.Fatalf("got %q, and %d keys refused, want lines to paste and some", want.Zones[0].Withheld, replayed.Zones[0].RefusedKeys)
		}
		for order, logs := range orders {
			got := recommended(t, logs[0], logs[1:]...)
			for _, r := range []*tune.Recommendation{got, want} {
				for i := range r.Zones[0].Refused {
					r.Zones[0].Refused[i].Asks = "" // is found as the lines come
				}
			}
			if !reflect.DeepEqual(got.Zones, want.Zones) {
				a, _ := json.Marshal(got.Zones)
				b, _ := json.Marshal(want.Zones)
				t.Errorf("%s, %s: got another recommendation\n%s\n%s", format, order, a, b)
			}
			args := append([]string{"replay", "--config", zoneOf(t, "limit 20 1/m")}, logs...)
			again := ranJSON[tune.Report](t, args...)
			check.That(t, reflect.DeepEqual(again.Zones, replayed.Zones), "%s, %s: got other figures of a replay\n%+v\n%+v", format, order, again.Zones, replayed.Zones)
		}
	}
}

// TestStaticFilesThatAreNotHereGoByTheirEndings, as without a config.
func TestStaticFilesThatAreNotHereGoByTheirEndings(t *testing.T) {
	log := writeLog(t, mixedLines()...)
	config := writeFile(t, "Caddyfile", ":80 {\nroot * /srv/absent\nthrottle {\nexempt static_files\nzone pages {\nlimit 5 1/m\n}\n}\nrespond ok\n}\n")
	r := ranJSON[tune.Report](t, "replay", "--config", config, log)
	want := recommended(t, log).Zones[0].Requests
	if got := r.Zones[0].Requests; got != want || !strings.Contains(strings.Join(r.Notes, "\n"), "/srv/absent, which is not here: static_files exempts static assets by their endings") {
		t.Errorf("got %d requests and the notes %q, want %d without assets, and that it says so", got, r.Notes, want)
	}
}
