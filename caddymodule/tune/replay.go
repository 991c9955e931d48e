package tune

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// A player runs the requests of a log through the zones of a config, at the times of the log.
// It is for one goroutine. The upstream does what the log says: it takes as long, and answers
// with the same status and size.
type player struct {
	*replayConfig
	now       time.Time
	events    []event // to come, in order
	observe   observer
	study     studier     // if not nil, each zone decides alone, and nothing is refused
	clients   clients.Log // all of the log, on another goroutine until all requests were run
	pagesOnly bool        // requests for static assets are not run
	shown     string      // the only zone to run, or empty

	fields  []string          // of zones, which requests are given that are log-ins
	logIns  []string          // to these addresses; if empty, all POSTs are
	answers bool              // what the upstream answers matters to some zone
	awaited bool              // and to one that has charged the request
	took    time.Duration     // by the upstream for the request; 0 if it was not asked
	headers bool              // and what requests have in their headers
	only    caddyhttp.Handler // the one that sees the requests, if there is but one; it needs no placeholders
	assets  int               // requests for static assets
	skipped int64             // requests that no server hands to its routes
	unknown map[string]string // why the log cannot answer for zones that are replayed, by name
}

// An observer learns what the zones decide. It is called once for each outcome, when it is
// final. The request is that of the log.
type observer func(o *limit.Outcome, req *accesslog.Request)

// A studier learns what a zone charges a request, and by how much the response corrects that,
// after so long.
type studier func(o *limit.Outcome, req *accesslog.Request, diff float64, took time.Duration)

// newPlayer loads a config, as JSON, for a replay.
func newPlayer(config []byte) (*player, error) {
	rp := &player{unknown: make(map[string]string)}
	c, err := loadReplayConfig(config, caddyhttp.HandlerFunc(rp.upstream), rp.limit)
	if err != nil {
		return nil, err
	}
	rp.replayConfig = c
	rp.clients.By(32, 64)
	return rp, nil
}

// clientsOf returns the clients of the log as a zone tells them apart.
func (rp *player) clientsOf(zone string) *clients.Table {
	key := rp.app.Zones[zone].Key
	return rp.clients.By(key.IPv4, key.IPv6)
}

// begin makes the store go by the time of the log, and takes those zones out of all handlers
// that are not to be replayed. It must be called once, before the first request.
func (rp *player) begin(without map[string]bool) {
	a := rp.app
	if a.Store = (roomyStore{rp.instant}); rp.study == nil {
		a.Store = memstore.New(memstore.Options{MaxBuckets: config.MostBuckets, Clock: rp.instant})
	}
	left := func(z *limit.Zone) bool { return without[z.Name] || rp.shown != "" && z.Name != rp.shown }
	for _, h := range rp.handlers {
		h.Zones = slices.DeleteFunc(slices.Clone(h.Zones), left)
	}
	a.Blockers = slices.DeleteFunc(slices.Clone(a.Blockers), left)
	// Without matchers and placeholders, nothing but one handler sees the requests.
	alone := !rp.routes && len(rp.handlers) == 1 && rp.handlers[0].Match == nil && a.Exempt == nil
	for name, z := range a.Zones {
		rp.clientsOf(name)
		if len(z.Static) > 0 && len(rp.absent) > 0 {
			z.Exempt = append(slices.Clone(z.Exempt), caddyhttp.MatcherSet{assets{}})
		}
		if len(z.Field) > 0 && !slices.Contains(rp.fields, z.Field[0]) {
			rp.fields = append(rp.fields, z.Field[0])
		}
		alone = alone && z.Match == nil && z.Exempt == nil && len(z.Static) == 0 && !z.Key.UsesReplacer() && !z.CostUsesReplacer()
		rp.headers = rp.headers || limit.ReadsHeaders(z.Key.Sources)
		z.Reporter = replayReporter{z.Reporter, rp}
		rp.answers = rp.answers || z.Settle != nil || len(z.Refund) > 0
	}
	if alone && !rp.answers && rp.study == nil {
		rp.only = caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			return rp.limit(rp.handlers[0]).ServeHTTP(w, r, caddyhttp.HandlerFunc(rp.upstream))
		})
	}
}

// A limiter stands for a throttle handler. It decides and settles as that does, at the time of
// the log, and lets nobody wait.
type limiter struct {
	*engine.Handler
	rp *player
}

// limit returns what stands for a handler.
func (rp *player) limit(h *engine.Handler) caddyhttp.MiddlewareHandler { return limiter{h, rp} }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (l limiter) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	concerned, failed := l.Concerns(r)
	if !concerned {
		return next.ServeHTTP(w, r)
	}
	rp := l.rp
	if rp.study != nil {
		return l.serveAll(w, r, next, failed)
	}
	verdict, err := limit.Decide(r, rp.now, failed, &l.Directive, rp.app)
	switch {
	case err != nil:
		record.Of(r).Refused = true
		return err
	case verdict == nil:
		return next.ServeHTTP(w, r)
	}
	verdict.Report(r, &l.Directive, rp.now, w.Header())
	if verdict.Refused() {
		record.Of(r).Refused = true
		w.WriteHeader(verdict.Decisive().Zone.Refusal.Status)
		return nil
	}
	needs, observer := verdict.Needs(), new(limit.Observer)
	if observer.OwnHeader = needs.OwnHeader; needs.Settles {
		rp.awaited = true
		err = observer.Serve(w, r, next)
	} else {
		err = next.ServeHTTP(w, r)
	}
	if within := record.Find(r.Context()); within != nil && within.Refused && verdict != nil {
		_ = rp.app.Store.Settle(r.Context(), verdict.GiveBack(false)) // in memory, which does not fail
	} else if needs.Settles {
		observer.Took(rp.took)
		rp.after(rp.took, func() { _ = rp.app.Store.Settle(r.Context(), verdict.Settle(r, rp.now, nil, observer)) })
	}
	return err
}

// serveAll lets each zone decide as if there were no other, serves the request whatever they say,
// and tells what they charge.
func (l limiter) serveAll(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, failed error) error {
	rp, observer := l.rp, new(limit.Observer)
	var verdicts []*limit.Verdict
	for i := range l.Zones {
		alone := l.Directive
		alone.Zones = l.Zones[i : i+1]
		verdict, err := limit.Decide(r, rp.now, failed, &alone, rp.app)
		if err != nil || verdict == nil || len(verdict.Outcomes) == 0 {
			continue
		}
		needs := verdict.Needs()
		observer.OwnHeader, rp.awaited = observer.OwnHeader || needs.OwnHeader, rp.awaited || needs.Settles
		verdicts = append(verdicts, verdict)
	}
	err := observer.Serve(w, r, next)
	observer.Took(rp.took)
	for _, verdict := range verdicts {
		diff := 0.0
		for _, due := range verdict.Settle(r, rp.now, nil, observer) {
			diff = due.Diff
		}
		rp.study(&verdict.Outcomes[0], loggedOf(r), diff, rp.took)
	}
	return err
}

// A roomyStore admits everything: what limits there are does not matter.
type roomyStore struct{ now func() leakybucket.Instant }

// Take implements leakybucket.Store.
func (s roomyStore) Take(_ context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	for i := range decisions {
		decisions[i] = leakybucket.Decision{Fits: true, Poured: !charges[i].Probe, At: s.now()}
	}
	return nil
}

// Settle implements leakybucket.Store.
func (roomyStore) Settle(context.Context, []leakybucket.Settlement) error { return nil }

// An event is what is to happen at a time.
type event struct {
	at time.Time
	do func()
}

// after lets something happen later: of what happens at one time, what was asked for first
// comes first.
func (rp *player) after(d time.Duration, do func()) {
	at := rp.now.Add(d)
	i := sort.Search(len(rp.events), func(i int) bool { return rp.events[i].at.After(at) })
	rp.events = slices.Insert(rp.events, i, event{at, do})
}

// advance lets the time pass until then, and everything happen that is due.
func (rp *player) advance(then time.Time) {
	for len(rp.events) > 0 && !rp.events[0].at.After(then) {
		due := rp.events[0]
		rp.events = rp.events[1:]
		rp.now = due.at
		due.do()
	}
	if then.After(rp.now) {
		rp.now = then
	}
}

// finish lets everything happen that is left.
func (rp *player) finish() {
	for len(rp.events) > 0 {
		rp.advance(rp.events[0].at)
	}
}

// assets matches requests for static assets, by their endings: the files are not here.
type assets struct{}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (assets) MatchWithError(r *http.Request) (bool, error) { return loggedOf(r).Asset(), nil }

// instant is the time as buckets have it.
func (rp *player) instant() leakybucket.Instant {
	return leakybucket.Instant(rp.now.UnixMicro())
}

// loggedKey is the context key of the request of the log.
type loggedKey struct{}

// loggedOf returns the request of the log that an http.Request stands for.
func loggedOf(r *http.Request) *accesslog.Request {
	req, _ := r.Context().Value(loggedKey{}).(*accesslog.Request)
	return req
}

// A replayReporter tells a replay what its zones decide, and a zone's own reporter the rest.
type replayReporter struct {
	limit.Reporter
	rp *player
}

// Decided implements limit.Reporter.
func (r replayReporter) Decided(o *limit.Outcome, asked *http.Request, _ time.Time, _ http.Header) {
	if r.rp.observe != nil {
		r.rp.observe(o, loggedOf(asked))
	}
}

// run runs one request, after everything that has to happen before it arrives.
func (rp *player) run(req *accesslog.Request) {
	if req.Asset() {
		if rp.assets++; rp.pagesOnly {
			return
		}
	}
	rp.advance(req.At)
	ctx, w, chain := context.WithValue(context.Background(), loggedKey{}, req), new(discarded), rp.only
	if chain != nil {
		ctx = context.WithValue(ctx, caddyhttp.VarsCtxKey, make(map[string]any))
	}
	uri := req.URI
	if len(rp.fields) > 0 && rp.logsIn(req) { // logs hold no bodies, and a query carries fields too
		uri += map[bool]string{true: "&", false: "?"}[strings.Contains(uri, "?")] + strings.Join(rp.fields, "=&") + "="
	}
	r := newRequest(ctx, req, uri)
	if r == nil {
		rp.skipped++
		return
	}
	if chain == nil || rp.headers {
		for name, value := range req.Headers() {
			r.Header[name] = append(r.Header[name], value)
		}
	}
	if chain == nil {
		server := rp.serverOf(req)
		r, chain = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, server.Server), server.chain
	}
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, clientIP(req))
	rp.awaited, rp.took = false, 0
	_ = chain.ServeHTTP(w, r)
}

// logsIn reports whether a request counts as a log-in.
func (rp *player) logsIn(req *accesslog.Request) bool {
	return req.Method == http.MethodPost && (len(rp.logIns) == 0 || slices.ContainsFunc(rp.logIns, func(path string) bool {
		folder, all := strings.CutSuffix(path, "*")
		return all && strings.HasPrefix(req.Route(), folder) || req.Route() == path
	}))
}

// upstream answers as the log says.
func (rp *player) upstream(w http.ResponseWriter, r *http.Request) error {
	if !rp.answers || !rp.awaited {
		return nil
	}
	req := loggedOf(r)
	status := req.Status
	if status < 100 || status > 599 {
		status = http.StatusOK
	}
	rp.took = served(req)
	w.WriteHeader(status)
	if status == http.StatusSwitchingProtocols {
		return nil
	}
	for left := req.Size; left > 0; left -= int64(len(zeros)) {
		if _, err := w.Write(zeros[:min(left, int64(len(zeros)))]); err != nil {
			return nil
		}
	}
	return nil
}

// zeros are a body to send.
var zeros = make([]byte, 1<<20)

// served returns how long the upstream had the request. What it waited in zones is in
// the log, and does not count.
func served(req *accesslog.Request) time.Duration {
	return max(0, req.Duration-req.ThrottleDelay())
}

// completed is the state of all connections whose handshake is over.
var completed = &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13}

// newRequest returns the request of a log for an address without its headers, as net/http hands
// it to Caddy, or nil if net/http would refuse it.
func newRequest(ctx context.Context, req *accesslog.Request, uri string) *http.Request {
	if req.Method == http.MethodConnect && !strings.HasPrefix(uri, "/") {
		uri = "http://" + uri
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil
	}
	r := &http.Request{
		Method: req.Method, URL: u, Proto: req.Proto, Header: make(http.Header), Body: http.NoBody, ContentLength: max(0, req.Received),
		Host: req.Host, RemoteAddr: net.JoinHostPort(req.Remote, "1"), RequestURI: uri,
	}
	if u.Host != "" {
		r.Host, u.Host, u.Scheme = u.Host, "", ""
	}
	var ok bool
	if r.ProtoMajor, r.ProtoMinor, ok = http.ParseHTTPVersion(req.Proto); !ok {
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	}
	if req.TLS {
		r.TLS = completed
	}
	return r.WithContext(ctx)
}

// clientIP returns the address of the client as zones see it, which keys keep.
func clientIP(req *accesslog.Request) string {
	if req.StandsIn {
		return req.Client.String()
	}
	return strings.Clone(req.ClientText)
}

// discarded is a response that nobody reads.
type discarded struct{ header http.Header }

// Header implements http.ResponseWriter.
func (d *discarded) Header() http.Header {
	if d.header == nil {
		d.header = make(http.Header)
	}
	return d.header
}

// Write implements http.ResponseWriter.
func (d *discarded) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (d *discarded) WriteHeader(int) {}
