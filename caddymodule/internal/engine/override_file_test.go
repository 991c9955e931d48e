package engine_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// apiSite has a zone of API keys with an override file.
func apiSite(t *testing.T, file, options string) *servertest.Site {
	t.Helper()
	return servertest.Run(t, `{
		throttle {
			plan gold 4 1/h
		}
	}
	http:// {
		throttle {
			zone api {
				key header X-Api-Key`+options+`
				limit 1 1/h
				override_file `+file+`
			}
		}
		respond "{http.throttle.key} {http.throttle.reason}"
	}`)
}

func apiKey(s *servertest.Site, key string) servertest.Client {
	return s.From(servertest.Someone).With("X-Api-Key", key)
}

func TestAnOverrideFileGivesKeysTheirLimits(t *testing.T) {
	digest := bucketkey.DigestOf("secret")
	s := apiSite(t, servertest.OverrideText(t, fmt.Sprintf("shop gold\nbakery 2 1/h # small\nsha256:%x 3 1/h\nfriend unlimited\nleaked deny\n", digest)), "")
	apiKey(s, "nobody").Passes(1, "/")
	apiKey(s, "shop").Passes(4, "/")
	apiKey(s, "bakery").Passes(2, "/")
	apiKey(s, "secret").Passes(3, "/")
	apiKey(s, "leaked").Passes(0, "/")
	for range 10 {
		apiKey(s, "friend").Answers("/", http.StatusOK)
	}
}

func TestAChangedOverrideFileIsInForceWithoutAReload(t *testing.T) {
	file := servertest.OverrideText(t, "shop 2 1/h\n")
	s := apiSite(t, file, "\noverride baker 3 1/h")
	apiKey(s, "shop").Passes(2, "/")
	servertest.WriteFile(t, file, "shop gold\nbaker gold\n")
	apiKey(s, "shop").Answers("/", http.StatusTooManyRequests)
	s.Looks()
	apiKey(s, "shop").Passes(2, "/") // of 4, for the level stays
	apiKey(s, "baker").Passes(4, "/")
	if got := s.Logs.Lines(t, "override_file is in force"); len(got) != 1 || got[0]["overrides"] != 2.0 || got[0]["file"] != file {
		t.Errorf("got the log lines %v, want one about two overrides", got)
	}
	servertest.WriteFile(t, file, "# nobody\n")
	s.Looks()
	apiKey(s, "other").Passes(1, "/")
	apiKey(s, "shop").Answers("/", http.StatusTooManyRequests)
}

func TestAWrongLineKeepsTheOverridesReadBefore(t *testing.T) {
	file := servertest.OverrideText(t, "shop gold\n")
	s := apiSite(t, file, "")
	for _, test := range []struct{ text, says string }{
		{"shop deny\n\nbakery golf\n", `unknown plan "golf": want one of the plans, <capacity> <leak>, unlimited or deny, at ` + file + ":3"},
		{"shop deny\nbakery gold\nshop gold\n", "given twice; see line 1, at " + file + ":3"},
		{"shop deny\noverride bakery gold\n", "2 parts of a key given before the limit \"gold\", and the key has 1: want <part>... <plan>|<capacity> <leak>|unlimited|deny, such as 100 10/s at the end; lines of the file do not begin with override, at " + file + ":2"},
		{"shop deny\na gold as x\nb 1 1/s as x", "as x has another limit elsewhere: keys that share a bucket need the same limit; see line 2, at " + file + ":3"},
		{"", "the file is empty, as if a write had failed: want at least a comment, such as # no overrides, at " + file},
	} {
		servertest.WriteFile(t, file, test.text)
		s.Looks()
		s.Looks() // says it once
		lines := s.Logs.Lines(t, "override_file is wrong; the overrides that were read before stay in force")
		if n := len(lines); n == 0 || lines[n-1]["error"] != test.says || lines[n-1]["level"] != "error" {
			t.Fatalf("%q: got the log lines %v, want one that says %s", test.text, lines, test.says)
		}
	}
	if got := s.Logs.Lines(t, "override_file is wrong"); len(got) != 5 {
		t.Errorf("got %d log lines, want one for each mistake", len(got))
	}
	apiKey(s, "shop").Passes(4, "/")
}

func TestAMetricTellsThatAnOverrideFileIsStale(t *testing.T) {
	file := servertest.OverrideText(t, "shop gold\n")
	s := apiSite(t, file, "")
	servertest.StartZones(t, s.Engine())
	stale := func(want ...float64) {
		t.Helper()
		var got []float64
		for _, sample := range s.Metric(t, "caddy_throttle_override_file_stale") {
			if sample.Labels["zone"] == "api" {
				got = append(got, sample.Value)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	stale(0)
	servertest.WriteFile(t, file, "shop golf\n")
	s.Looks()
	stale(1)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.Looks()
	stale(1)
	servertest.WriteFile(t, file, "shop 3 1/h\n")
	s.Looks()
	stale(0)

	z := s.Engine().Zones["api"]
	without := &engine.Zone{Zone: z.Zone, State: z.State, Counts: z.Counts} // of a reload
	next := &engine.Engine{Zones: map[string]*engine.Zone{"api": without}, Control: s.Engine().Control}
	servertest.StartZones(t, next)
	stale()
}

// However narrow an override of the Caddyfile is, a line of the file is stronger, and
// what is changed at run time stronger still.
func TestRunTimeBeatsTheFileAndTheFileTheCaddyfile(t *testing.T) {
	file := servertest.OverrideText(t, "203.0.113.0/24 3 1/h\n")
	s := servertest.Run(t, `http:// {
		throttle {
			zone pages {
				limit 1 1/h
				override 203.0.113.7 2 1/h
				override 198.51.100.7 2 1/h
				override_file `+file+`
			}
		}
		respond ok
	}`)
	s.From("198.51.100.7:1").Passes(2, "/")
	s.From("192.0.2.1:1").Passes(1, "/")
	s.From("203.0.113.7:1").Passes(3, "/")
	var got wire.Why
	why := func(want string) {
		t.Helper()
		s.Admin(http.MethodPost, "/throttle/why", `{"client": "203.0.113.7"}`, &got)
		if len(got.Buckets) != 1 || got.Buckets[0].By+" "+got.Buckets[0].From != want {
			t.Errorf("got %+v, want %s", got.Buckets, want)
		}
	}
	why("override_file " + file + ":1")
	s.Changes("/throttle/limit", `{"zone": "pages", "key": "203.0.113.7", "limit": "5 1/h", "for": "1h"}`)
	s.From("203.0.113.7:1").Passes(2, "/")
	why("run_time 5 1/h")
	s.Changes("/throttle/unlimit", `{"zone": "pages", "key": "203.0.113.7"}`)
	servertest.WriteFile(t, file, "# nobody\n")
	s.Looks()
	s.From("203.0.113.7:1").Answers("/", http.StatusTooManyRequests)
	why("override override 1")
}

func TestKeysOfOneNameShareOneBucket(t *testing.T) {
	s := apiSite(t, servertest.OverrideText(t, "shop gold as shop\nits-app gold as shop\nother gold\n"), "\noverride its-till 4 1/h as shop")
	for i, key := range []string{"shop", "its-app", "its-till", "shop"} {
		w := apiKey(s, key).Get("/")
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), "@as/shop ") {
			t.Errorf("request %d: got %d and %q, want it charged to @as/shop", i, w.Code, w.Body)
		}
	}
	apiKey(s, "its-app").Answers("/", http.StatusTooManyRequests)
	apiKey(s, "other").Passes(4, "/")

	var got wire.Why
	s.Admin(http.MethodPost, "/throttle/why", `{"client": "its-till"}`, &got)
	if len(got.Buckets) != 1 || got.Buckets[0].Key != "@as/shop" || got.Buckets[0].Level < 3.9 || got.Buckets[0].Capacity != 4 {
		t.Errorf("got %+v, want the full shared bucket", got.Buckets)
	}
	var freed wire.Released
	s.Admin(http.MethodPost, "/throttle/release", `{"client": "its-app"}`, &freed)
	if len(freed.Freed) != 1 {
		t.Errorf("got %+v, want the shared bucket emptied", freed)
	}
	apiKey(s, "shop").Passes(4, "/")
}

func TestABlockOfASharedBucketHoldsForAllItsKeys(t *testing.T) {
	s := apiSite(t, servertest.OverrideText(t, "shop gold as shop\nits-app gold as shop\n"), "\nblock 10m")
	apiKey(s, "shop").Passes(4, "/")
	if got := apiKey(s, "its-app").Get("/"); got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") == "" {
		t.Errorf("got %d with %v, want it blocked", got.Code, got.Header())
	}
	apiKey(s, "nobody").Passes(1, "/")
}

func TestSharedBucketsAreCorrectedBySettle(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone api {
				key header X-Api-Key
				limit 1 1/h
				cost 0.5
				settle header X-Cost debt 0
				override_file `+servertest.OverrideText(t, "shop 4 1/h as shop\nits-app 4 1/h as shop\n")+`
			}
		}
		header X-Cost 2
		respond ok
	}`)
	apiKey(s, "shop").Answers("/", http.StatusOK)
	apiKey(s, "its-app").Answers("/", http.StatusOK)
	apiKey(s, "shop").Answers("/", http.StatusTooManyRequests)
}

func TestUnlistedKeyCountsTheLinesOfTheFile(t *testing.T) {
	file := servertest.OverrideText(t, "shop gold\n")
	s := apiSite(t, file, " unlisted refuse")
	apiKey(s, "shop").Answers("/", http.StatusOK)
	if got := apiKey(s, "bakery").Get("/"); got.Code != http.StatusTooManyRequests {
		t.Errorf("got %d for a key that nobody listed, want it refused", got.Code)
	}
	servertest.WriteFile(t, file, "bakery gold\n")
	s.Looks()
	apiKey(s, "bakery").Answers("/", http.StatusOK)
	apiKey(s, "shop").Answers("/", http.StatusTooManyRequests)
}

func TestShadowZonesTakeTheFileToo(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone api {
				key header X-Api-Key
				limit 9 1/h
				shadow
				override_file `+servertest.OverrideText(t, "leaked deny\nshop 1 1/h\n")+`
			}
		}
		respond {http.throttle.decision}
	}`)
	for _, test := range []struct{ key, want string }{{"leaked", "shadow_refused"}, {"shop", "admitted"}, {"shop", "shadow_refused"}, {"nobody", "admitted"}} {
		if got := apiKey(s, test.key).Get("/").Body.String(); got != test.want {
			t.Errorf("%s: got %s, want %s", test.key, got, test.want)
		}
	}
}

// The file of two zones is taken by both or by none.
func TestZonesThatShareAFileTakeItTogether(t *testing.T) {
	file := servertest.OverrideText(t, "203.0.113.7 2 1/h\n")
	s := servertest.Run(t, `{
		throttle {
			zone pages {
				limit 1 1/h
				override_file `+file+`
			}
			zone named {
				key header X-Api-Key
				limit 1 1/h
				override_file `+file+`
			}
		}
	}
	http:// {
		throttle /pages pages
		throttle /named named
		respond ok
	}`)
	s.From("203.0.113.7:1").Passes(2, "/pages")
	apiKey(s, "203.0.113.7").Passes(2, "/named")
	servertest.WriteFile(t, file, "203.0.113.7 3 1/h\nshop 9 1/h\n") // shop is no address
	s.Looks()
	if got := s.Logs.Lines(t, "override_file is wrong"); len(got) != 1 || !strings.HasSuffix(fmt.Sprint(got[0]["error"]), file+":2") {
		t.Errorf("got %v, want one line about line 2", got)
	}
	s.From("203.0.113.7:1").Answers("/pages", http.StatusTooManyRequests)
	apiKey(s, "203.0.113.7").Answers("/named", http.StatusTooManyRequests)
	apiKey(s, "shop").Passes(1, "/named")
	servertest.WriteFile(t, file, "203.0.113.7 3 1/h\n")
	s.Looks()
	s.From("203.0.113.7:1").Passes(1, "/pages")
	apiKey(s, "203.0.113.7").Passes(1, "/named")
}

func TestAnOverrideThatIsTooSmallForSomeRequestsIsWarnedOf(t *testing.T) {
	file := servertest.OverrideText(t, "shop 9 1/h\n")
	s := servertest.Run(t, `http:// {
		throttle {
			zone api {
				key header X-Api-Key
				limit 9 1/h
				cost 5
				override_file `+file+`
			}
		}
		respond ok
	}`)
	const warning = "the capacity of an override is less than some requests cost"
	s.Warned(t, warning, 0)
	servertest.WriteFile(t, file, "shop 4 1/h\nbakery 3 1/h\n")
	s.Looks()
	s.Warned(t, warning, 1)
}

func TestStatusAndBucketsSayWhereLimitsComeFrom(t *testing.T) {
	file := servertest.OverrideText(t, "# customers\nshop gold\nleaked deny\n")
	s := apiSite(t, file, "\noverride baker 3 1/h")
	for _, key := range []string{"shop", "baker", "nobody"} {
		apiKey(s, key).Answers("/", http.StatusOK)
	}
	var list wire.Buckets
	s.Admin(http.MethodPost, "/throttle/buckets", `{"zone": "api"}`, &list)
	got := make(map[float64]string)
	for _, b := range list.Buckets {
		got[b.Capacity] = b.By + " " + b.From
	}
	for capacity, want := range map[float64]string{4: "override_file " + file + ":2", 3: "override override 1", 1: "zone "} {
		if got[capacity] != want {
			t.Errorf("capacity %v: got %q, want %q", capacity, got[capacity], want)
		}
	}
	var why wire.Why
	s.Admin(http.MethodPost, "/throttle/why", `{"client": "leaked"}`, &why)
	if len(why.Buckets) != 1 || why.Buckets[0].Verdict.Reason != "denied" || why.Buckets[0].From != file+":3" {
		t.Errorf("got %+v, want it denied by the third line", why.Buckets)
	}
	read := func() *overridefile.Status {
		t.Helper()
		var s1 struct {
			Zones []struct {
				File *overridefile.Status `json:"override_file"`
			}
		}
		s.Admin(http.MethodGet, "/throttle/zones", "", &s1)
		if len(s1.Zones) != 1 || s1.Zones[0].File == nil {
			t.Fatalf("got %+v, want the state of the file", s1)
		}
		return s1.Zones[0].File
	}
	before := read()
	if before.File != file || before.Overrides != 2 || before.Read.IsZero() || before.Problem != "" {
		t.Errorf("got %+v, want two overrides", before)
	}
	servertest.WriteFile(t, file, "shop golf\n")
	s.Looks()
	if after := read(); after.Overrides != 2 || !after.Read.Equal(before.Read) || !strings.HasSuffix(after.Problem, file+":1") {
		t.Errorf("got %+v, want the two overrides from before and the problem", after)
	}
}

func TestLimitTakesPlansAndPlainKeys(t *testing.T) {
	s := apiSite(t, servertest.OverrideText(t, "its-app 1 1/h as shop\nshop 1 1/h as shop\n"), "")
	apiKey(s, "bakery").Passes(1, "/")
	s.Changes("/throttle/limit", `{"zone": "api", "key": "bakery", "limit": "gold", "for": "1h", "note": "ticket"}`)
	apiKey(s, "bakery").Passes(3, "/")
	s.Changes("/throttle/unlimit", `{"zone": "api", "key": "bakery"}`)
	apiKey(s, "bakery").Answers("/", http.StatusTooManyRequests)

	apiKey(s, "shop").Passes(1, "/")
	s.Changes("/throttle/limit", `{"zone": "api", "key": "its-app", "limit": "gold", "for": "1h"}`)
	apiKey(s, "shop").Passes(3, "/") // the bucket's limit, whichever key names it
	var got []string
	for _, l := range s.Engine().Control.Changes.Table.List(time.Now()) {
		got = append(got, l.Key+" "+l.Limit)
	}
	if strings.Join(got, ",") != "@as/shop gold" {
		t.Errorf("got %v, want that of the shared bucket, without the plain key", got)
	}
	if status := s.Admin(http.MethodPost, "/throttle/limit", `{"zone": "api", "limit": "golf", "for": "1h"}`, nil); status != http.StatusBadRequest {
		t.Errorf("got %d for an unknown plan, want 400", status)
	}
	if status := s.Admin(http.MethodPost, "/throttle/limit", `{"zone": "api", "key": "alice/@device/x", "limit": "gold", "for": "1h"}`, nil); status != http.StatusBadRequest {
		t.Errorf("got %d for a device, want 400", status)
	}
}

// Watching begins when a config starts. What is read before is the file's lines alone.
func TestNothingIsWatchedBeforeAConfigStarts(t *testing.T) {
	s := apiSite(t, servertest.OverrideText(t, "shop gold\n"), "")
	a := s.Engine()
	if a.StopBeside != nil {
		t.Error("got a file that is watched, want none before Start")
	}
}

func TestAPlainKeyThatIsLimitedIsInNoLogAndNoJournal(t *testing.T) {
	s := apiSite(t, servertest.OverrideText(t, "# nobody\n"), "")
	for _, call := range []string{"limit", "unlimit"} {
		s.Changes("/throttle/"+call, `{"zone": "api", "key": "s3cret", "limit": "gold", "for": "1h"}`)
	}
	var journal []struct{ Action, Of string }
	s.Admin(http.MethodGet, "/throttle/journal", "", &journal)
	if len(journal) < 2 {
		t.Fatalf("got %v, want two changes", journal)
	}
	digest := fmt.Sprintf("api/@sha256:%x", bucketkey.DigestOf("s3cret"))
	for _, c := range journal[:2] {
		if c.Of != digest {
			t.Errorf("%s: got it of %s, want %s", c.Action, c.Of, digest)
		}
	}
	for _, line := range s.Logs.Lines(t, "") {
		if strings.Contains(fmt.Sprint(line), "s3cret") {
			t.Errorf("got the plain key in the log line %v", line)
		}
	}
}

func TestAChangeWithoutAnEndHoldsForThirtyDays(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle pages 1 1/d
		respond ok
	}`)
	s.From(servertest.Someone).Passes(1, "/")
	s.Changes("/throttle/shadow", `{"note": "the shop sells tickets"}`)
	s.Changes("/throttle/limit", `{"zone": "pages", "limit": "unlimited"}`)
	s.From(servertest.Someone).Answers("/", http.StatusOK)
	s.From(servertest.Someone).Answers("/", http.StatusOK)
	var raw []map[string]any
	s.Admin(http.MethodGet, "/throttle/overrides", "", &raw)
	if len(raw) != 2 || raw[0]["kind"] != "shadow" || raw[0]["until"] == nil || raw[0]["note"] != "the shop sells tickets" {
		t.Errorf("got %v, want a switch with a note and an end", raw)
	}
	var zones struct {
		Zones []struct {
			Mode        string
			ShadowUntil *time.Time `json:"shadow_until"`
		}
	}
	s.Admin(http.MethodGet, "/throttle/zones", "", &zones)
	if len(zones.Zones) != 1 || zones.Zones[0].Mode != "shadow" || zones.Zones[0].ShadowUntil == nil || time.Until(*zones.Zones[0].ShadowUntil).Round(time.Hour) != 30*24*time.Hour {
		t.Errorf("got %+v, want shadow for 30 days", zones.Zones)
	}
	s.Changes("/throttle/unlimit", `{"zone": "pages"}`)
	s.Changes("/throttle/unshadow", `{}`)
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24"}`)
	w := s.From(servertest.Someone).Get("/")
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != fmt.Sprint(30*24*3600) {
		t.Errorf("got %d and Retry-After %s, want a ban that is told as the longest", w.Code, w.Header().Get("Retry-After"))
	}
}
