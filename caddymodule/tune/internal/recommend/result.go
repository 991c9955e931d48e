package recommend

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
)

// A Result is what a study found. Its JSON is one zone of `caddy throttle recommend
// --json`.
type Result struct {
	Zone string `json:"zone,omitempty"` // empty without --config
	Options

	From       time.Time `json:"from"`
	To         time.Time `json:"to"`
	Requests   int       `json:"requests"` // that were charged
	Assets     int       `json:"assets"`   // requests for static assets, which were not
	Keys       int       `json:"keys"`
	PeopleKeys int       `json:"people_keys"` // of clients that look like people

	Units     *Curve        `json:"limit"`
	Withheld  []string      `json:"withheld"`     // why no limit is recommended; then there is no Caddyfile
	Notes     []string      `json:"notes"`        // what the figures leave out
	Refused   []clients.Key `json:"most_refused"` // by the recommended limit
	Caddyfile string        `json:"caddyfile"`    // empty if the limit is withheld

	study   *Study
	noun    string // for a key
	many    int    // clients that look like many people each
	busiest *key   // whose requests cost most
}

const (
	// forgives is how long a client may have to wait for its whole burst again with a
	// limit that is recommended, in seconds.
	forgives = 600

	// nearlyAll is how much of what the best limit removes a gentler one must remove, and margin
	// how much more than the least capacity a round one has.
	nearlyAll, margin = 0.95, 1.05

	// leastBurst is the least burst of a limit for pages that is recommended.
	leastBurst = 20

	// Nothing is recommended where a limit would remove less than leastRemoved of the load,
	// or one key sends more than mostOfOne, or so many requests have no address; nor from a
	// log of fewer than leastRequests or less than leastSpan.
	leastRemoved  = 0.03
	mostOfOne     = 0.5
	leastRequests = 1000
	leastSpan     = 24 * time.Hour
)

// Result computes what to recommend. Assets is how many requests were left out because
// they were for static assets.
func (s *Study) Result(assets int) *Result {
	r := &Result{
		Options: s.Options, From: s.from, To: s.to, Requests: s.requests, Assets: assets, Keys: len(s.keys),
		Withheld: []string{}, Notes: []string{}, Refused: []clients.Key{}, study: s, noun: "key",
	}
	if s.zone.Key != nil && s.zone.Key.IsAddress() || r.Pages {
		r.noun = "client"
	}
	floor := max(1, math.Ceil(s.zone.MostCost))
	if r.Pages {
		floor = max(floor, leastBurst)
	} else {
		r.Zone = s.zone.Name
	}
	curve, best := s.curve(floor)
	r.Units = curve
	spared := r.look(best)
	verb := "To check"
	if s.Check.Leak == "" {
		verb = "Recommended"
		r.withhold()
	}
	curve.Reason = r.reason(verb)
	if s.limited*50 > r.Requests {
		r.Notes = append(r.Notes, clients.Percent(float64(s.limited)/float64(r.Requests))+" of the requests were answered with 429 or 503 already. Clients would have sent something else without that.")
	}
	if len(r.Withheld) == 0 {
		r.Caddyfile = r.lines()
		for _, k := range spared {
			note := " looks like many people, and would be refused. If it is an office or a school, give it an override."
			if k.Probe != "" {
				note = " seems to be " + k.Probe + ", and would be refused. If it is yours, let it pass, by exempt client_ip in the global options."
			}
			r.Notes = append(r.Notes, command.Printable(k.Key, 60)+note)
		}
	}
	return r
}

// look looks at the clients of all keys, and at whom the best limit refuses. It returns those of
// them that look as if they should be spared.
func (r *Result) look(best *rung) (spared []clients.Key) {
	s, refused := r.study, make(map[int]*clients.Key)
	best.judge(r.Units.Best().Capacity, func(id int, c *charge) {
		if refused[id] == nil {
			refused[id] = &clients.Key{Key: s.keys[id].name, Asked: len(s.keys[id].charges), Sender: s.client(id).Sender()}
		}
		refused[id].Refuse(time.UnixMicro(int64(c.at)).UTC())
	})
	for id := range s.keys {
		if k := &s.keys[id]; r.busiest == nil || k.load > r.busiest.load {
			r.busiest = k
		}
		if s.keys[id].people > 0 {
			r.PeopleKeys++
		}
		if s.keys[id].people > 1 && r.noun == "client" {
			r.many++
		}
	}
	for _, k := range refused {
		if r.Refused = append(r.Refused, *k); (k.Looks == clients.Many || k.Probe != "") && r.noun == "client" {
			spared = append(spared, *k)
		}
	}
	r.Refused = clients.MostRefused(r.Refused)
	return clients.MostRefused(spared)
}

// withhold says why the log is no ground for a limit.
func (r *Result) withhold() {
	why := func(is bool, format string, args ...any) {
		if is {
			r.Withheld = append(r.Withheld, fmt.Sprintf(format, args...))
		}
	}
	span := r.To.Sub(r.From)
	why(r.Requests < leastRequests, "Only %s charged. Read a longer log.", clients.Counted(r.Requests, "request was", "requests were"))
	why(span < leastSpan, "These requests cover only %s. A week or more has the busiest days in it.", spanText(span))
	switch nobody, load := r.study.nobody, r.busiest.load; {
	case 2*nobody > r.Requests:
		why(true, "%s of the requests have no address of a client. Log it: Caddy's JSON has client_ip, unless a filter removes it.", clients.Percent(float64(nobody)/float64(r.Requests)))
	case load > mostOfOne*r.Units.Load:
		remedy := "If that is your proxy or CDN, name it in trusted_proxies and log the addresses of clients. If it is a robot, ban it."
		switch is := r.study.clients.Of(r.busiest.sender).Sender(); {
		case is.Probe != "":
			remedy = fmt.Sprintf("It seems to be %s. If it is yours, let it pass, by exempt client_ip in the global options.", is.Probe)
		case is.Looks == clients.Many:
			remedy = strings.Replace(remedy, "a robot, ban it", "an office or a school, give it an override", 1)
		}
		if addr, err := netip.ParseAddr(r.busiest.name); err == nil && addr.Is4() { // nothing else may be pasted into a shell
			remedy += fmt.Sprintf(" To judge the rest, give this command - instead of LOG, and the output of zgrep -hvwF '%s' LOG.", addr)
		}
		why(true, "%s sent %s of the load. %s", command.Printable(r.busiest.name, 60), clients.Percent(load/r.Units.Load), remedy)
	case 2*r.many > r.Keys:
		why(true, "%s of %s look like many people each. If they are your proxy's or CDN's, name it in trusted_proxies and log the addresses of clients.", clients.Comma(r.many), clients.Counted(r.Keys, r.noun))
	}
	why(r.PeopleKeys == 0, "None of these clients looks like a person, who loads static assets with pages. Read a log that has people and the assets.")
	why(r.Units.Best().RefusedLoad < leastRemoved, "No limit above that gives a burst back within ten minutes removes more than %s of the load, so there is nothing to hold back in this log.", clients.Percent(leastRemoved))
}

// Text returns the result for people. Texts from the log are made printable.
func (r *Result) Text() string {
	var b strings.Builder
	if r.Zone != "" {
		fmt.Fprintf(&b, "zone %s, as if there were no other (replay --zone %[1]s)\n\n", r.Zone)
	}
	fmt.Fprintf(&b, "%s of %s from %s to %s", clients.Counted(r.Requests, "request"), clients.Counted(r.Keys, r.noun), r.From.Format("2006-01-02 15:04"), r.To.Format("2006-01-02 15:04 MST"))
	if r.Assets > 0 {
		fmt.Fprintf(&b, ",\nbesides %s for static assets, which should be exempt", clients.Counted(r.Assets, "request"))
	}
	fmt.Fprintf(&b, ".\n%s looked like people: they loaded static assets with pages, and named no robot.\n", clients.Counted(r.PeopleKeys, r.noun))
	fmt.Fprintf(&b, "These limits leave %v%% of the people untouched", r.Spare)
	if r.Check.Leak != "" {
		b.WriteString(", but for the last, which is to check")
	}
	b.WriteString(":\n\n")
	row := func(cells ...any) { fmt.Fprintf(&b, "%s %6s %9s  %8s  %8s %8s  %10s  %9s\n", cells...) }
	row(" ", "leak", "capacity", "refill", r.noun+"s", "people", "requests", "load")
	row(" ", "", "", "", "refused", "refused", "refused", "refused")
	for i, p := range r.Units.Points {
		star := " "
		if i == r.Units.Recommended && len(r.Withheld) == 0 {
			star = "*"
		}
		row(star, p.Leak, numberText(p.Capacity), spanText(time.Duration(p.RefillSeconds*float64(time.Second))),
			clients.Comma(p.RefusedKeys), clients.Comma(p.RefusedPeople), clients.Comma(p.RefusedRequests), clients.Percent(p.RefusedLoad))
	}
	if len(r.Withheld) == 0 {
		fmt.Fprintf(&b, "\n%s\n", r.Units.Reason)
	} else {
		b.WriteString("\nNo limit is recommended:\n- " + strings.Join(r.Withheld, "\n- ") + "\n")
		if r.Zone == "" {
			b.WriteString("To be safe, begin with limit 120 2/s in shadow.\n")
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\nNote: %s\n", note)
	}
	if len(r.Withheld) == 0 {
		clients.WriteKeys(&b, fmt.Sprintf("Who would be refused, of %s", clients.Counted(r.Units.Best().RefusedKeys, r.noun)), r.Refused)
		fmt.Fprintf(&b, "\nTo paste into the Caddyfile:\n\n%s", r.Caddyfile)
	}
	return b.String()
}

// reason says in words what the best limit does, and verb what is done with it.
func (r *Result) reason(verb string) string {
	best := r.Units.Best()
	said := fmt.Sprintf("%s: limit %s. It would have refused ", verb, best.Text())
	if best.RefusedKeys == 0 {
		return said + fmt.Sprintf("none of %s.", clients.Counted(r.Keys, r.noun))
	}
	said += fmt.Sprintf("%s of %s and %s of %s, %s of the load", clients.Comma(best.RefusedKeys), clients.Counted(r.Keys, r.noun),
		clients.Comma(best.RefusedRequests), clients.Counted(r.Requests, "request"), clients.Percent(best.RefusedLoad))
	if best.RefusedPeople == 0 {
		return said + ", and nobody who looks like a person."
	}
	return said + fmt.Sprintf(". People among these %ss: %s.", r.noun, clients.Comma(best.RefusedPeople))
}

// lines returns the lines for the Caddyfile.
func (r *Result) lines() string {
	limit := "limit " + r.Units.Best().Text() + "\n"
	if r.Zone != "" {
		return fmt.Sprintf("# in zone %s, instead of its capacity and leak\n%s", r.Zone, limit)
	}
	exempt := ""
	if r.Assets > 0 {
		exempt = "\t\texempt static_files # if Caddy cannot read the files, give their folder a small cost, and use --config\n"
	}
	return "throttle {\n\tzone pages {\n" + exempt + "\t\t" + limit + "\t\tshadow # log only; remove it to enforce the limit\n\t}\n}\n"
}

// numberText writes a capacity as a Caddyfile takes it.
func numberText(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// spanText writes a duration without its zeros.
func spanText(span time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(span.Round(time.Second).String())
}
