package recommend

import (
	"fmt"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// withhold says why the log is no ground for a limit.
func (s *Study) withhold(r *Result) {
	why := func(format string, args ...any) { r.Withheld = append(r.Withheld, fmt.Sprintf(format, args...)) }
	if r.Requests == 0 {
		why("No request was charged.")
		return
	}
	if r.Requests < leastRequests {
		why("Only %s charged. Read a longer log.", were(r.Requests))
	}
	if span := r.To.Sub(r.From); span < leastSpan {
		why("The log covers only %s. A week or more has the busiest days in it.", spanText(span.Seconds()))
	}
	switch top := r.Top[0]; {
	case 2*s.nobody > r.Requests:
		why("%s of the requests have no address of a client. Log it: Caddy's JSON has client_ip, unless a filter removes it.", shareText(float64(s.nobody)/float64(r.Requests)))
	case top.Load > mostOfOne:
		why("%s sent %s of the load. If that is your proxy or CDN, name it in trusted_proxies and log the addresses of clients. If it is a robot, ban it or leave its lines out of the log.", printable(top.Key), shareText(top.Load))
	}
	if r.PeopleKeys == 0 {
		why("No client looks like a person, who loads static assets with pages. Read a log that has the assets.")
	}
	if best := r.Units.Best(); best.RefusedLoad < leastRemoved {
		why("No limit above that gives a burst back within ten minutes removes more than %s of the load, so there is nothing to hold back in this log.", shareText(leastRemoved))
	}
}

const (
	heldOut = 0.3 // of the log's time

	// mostApart is by how much the limits of two parts of a log may differ, as a factor.
	mostApart = 2.001 // a step of the ladder is 2
)

// holdOut chooses a limit by the first part of the log, and judges it by the rest. If it is
// far from that of the whole log, there is no limit to recommend.
func (s *Study) holdOut(r *Result, floor float64) {
	if len(r.Withheld) > 0 || r.checked {
		return
	}
	cut := leakybucket.Instant(r.To.UnixMicro() - int64(heldOut*float64(r.To.Sub(r.From).Microseconds())))
	first := s.units.Until(cut)
	c := s.curve(first, "request", floor)
	best, all := c.Best(), r.Units.Best()
	h := &HoldOut{Limit: best.Limit}
	r.HoldOut = h
	if best.RefusedLoad < leastRemoved {
		h.Reason = "The first 70% of the log has nothing to hold back, so nothing shows how the limit would do in another week."
		return
	}
	people := make(map[int]bool)
	s.units.Rung(c.Recommended).Refusals(best.Capacity, func(id int, at leakybucket.Instant, cost float64) {
		if at < cut {
			return
		}
		h.Load += cost
		if s.person(id) {
			people[id] = true
		}
	})
	h.People = len(people)
	if rest := s.units.Load - first.Load; rest > 0 {
		h.Load /= rest
	}
	who := "nobody who looks like a person"
	if h.People > 0 {
		who = Counted(h.People, r.Noun()) + " that look like people"
	}
	h.Reason = fmt.Sprintf("The first 70%% of the log alone gives limit %s, which would have refused %s and %s of the load in the rest.", h.Text(), who, shareText(h.Load))
	apart := func(a, b float64) bool { return max(a/b, b/a) > mostApart }
	leak := leaksOf(s.ladder)
	if apart(best.Capacity, all.Capacity) || apart(leak[c.Recommended], leak[r.Units.Recommended]) {
		r.Withheld = append(r.Withheld, fmt.Sprintf("The first 70%% of the log gives limit %s, and all of it limit %s, so another week may give a third one. Read a longer log.", best.Text(), all.Text()))
	}
}

// notes says what the figures leave out.
func (s *Study) notes(r *Result) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if r.Requests == 0 {
		return
	}
	if n := float64(r.PeopleKeys); n > 0 && n*(1-r.Spare/100) < 1 {
		note("%v%% of %s people is all of them, so the busiest one sets the limit. Read a longer log, or give a lower --spare.", r.Spare, comma(r.PeopleKeys))
	}
	if len(r.Crawlers) > 0 {
		note("Clients that the limit refuses say that they are %s. If you want these, let them pass: exempt verified_crawler %s.", strings.Join(r.Crawlers, ", "), strings.Join(r.Crawlers, " "))
	}
	if q := r.Quiet; r.PeopleKeys > 0 && q.Keys >= swarmKeys && q.Load >= swarmShare {
		note("%s that look like no people stay below the limit, and sent %s of the load: a swarm. No limit per client sees it. Hold the queue in Caddy, with in_flight and share.", Counted(q.Keys, r.Noun()), shareText(q.Load))
	}
	if s.limited*50 > r.Requests {
		note("%s of the requests were answered with 429 or 503 already. Clients would have sent something else without that.", shareText(float64(s.limited)/float64(r.Requests)))
	}
	if s.times != nil && !s.durationsMeant() {
		note("The numbers in the place of durations cannot be times: they are too small, or only grow. They are left out.")
	} else if s.times == nil {
		note("The log has no durations, so there is nothing to say about settle seconds and in_flight. Caddy's JSON log has them.")
	} else if s.timed < r.Requests {
		note("%s of %s requests have no duration and do not count for settle seconds and in_flight.", comma(r.Requests-s.timed), comma(r.Requests))
	}
}
