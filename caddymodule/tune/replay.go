package tune

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/tidwall/gjson"

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
	replayConfig
	now       time.Time
	events    []event     // to come, in order
	clients   clients.Log // all of the log
	pagesOnly bool        // requests for static assets are not run
	shown     string      // the only zone to run, or empty

	// observe learns what the zones decide, once for each outcome. The request is that of the log.
	observe func(o *limit.Outcome, req *accesslog.Request)

	// If study is not nil, each zone decides alone, and nothing is refused. It learns what a zone
	// charges a request, and by how much the response corrects that, after so long.
	study func(o *limit.Outcome, req *accesslog.Request, diff float64, took time.Duration)

	logIns  []string          // to these addresses; if empty, all POSTs are
	awaited bool              // what the upstream answers matters to a zone that has charged the request
	took    time.Duration     // by the upstream for the request; 0 if it was not asked
	unknown map[string]string // why the log cannot answer for zones that are replayed, by name

	// How many requests a report says more of.
	assets  int            // for static assets
	skipped int            // that no server hands to its routes
	keyless map[string]int // whose key lacks a part, by the zone's name
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
	if a.Store = (roomyStore{memstore.New(memstore.Options{MaxBuckets: 1}), rp.instant}); rp.study == nil {
		a.Store = memstore.New(memstore.Options{MaxBuckets: config.MostBuckets, Clock: rp.instant})
	}
	left := func(z *limit.Zone) bool { return without[z.Name] || rp.shown != "" && z.Name != rp.shown }
	for _, h := range rp.handlers {
		h.Zones = slices.DeleteFunc(slices.Clone(h.Zones), left)
	}
	for name, z := range a.Zones {
		rp.clientsOf(name)
		if len(z.Static) > 0 && len(rp.absent) > 0 {
			z.Exempt, z.Static = append(slices.Clone(z.Exempt), caddyhttp.MatcherSet{assets{}}), nil
		}
		if len(z.Field) > 0 && !slices.Contains(rp.fields, z.Field[0]) {
			rp.fields = append(rp.fields, z.Field[0])
		}
		z.Reporter = keylessReporter{z.Reporter, rp, z.Zone}
	}
}

// A limiter stands for a throttle handler. It decides and settles as that does, at the time of
// the log, and lets nobody wait.
type limiter struct {
	*engine.Handler
	rp *player
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (l limiter) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	concerned, failed := l.Concerns(r)
	switch {
	case !concerned || len(l.Zones) == 0:
		return next.ServeHTTP(w, r)
	case l.rp.study != nil:
		return l.learn(w, r, next, failed)
	}
	rp, some := l.rp, l.Directive
	some.Server = nil // so that there is a verdict about each request
	verdict, err := limit.Decide(r, failed, &some, rp.app)
	switch {
	case err != nil:
		record.Of(r).Refused = true
		return err
	case verdict == nil || len(verdict.Outcomes) == 0:
		return next.ServeHTTP(w, r)
	}
	for i := range verdict.Outcomes {
		rp.observe(&verdict.Outcomes[i], loggedOf(r))
	}
	if verdict.Refused() {
		record.Of(r).Refused = true
		w.WriteHeader(verdict.Decisive().Zone.Refusal.Status)
		return nil
	}
	awaits, within := verdict.Awaits(), record.Of(r)
	rp.awaited = rp.awaited || awaits
	observer, asked := rp.observer(verdict), within.Asked(r)
	err = observer.Serve(w, r, next)
	observer.Took(rp.took)
	if within.RefusedUnasked(r, asked) {
		_ = rp.app.Store.Settle(r.Context(), verdict.GiveBack(true)) // in memory, which does not fail
	} else if awaits {
		rp.after(rp.took, func() { _ = rp.app.Store.Settle(r.Context(), verdict.Settle(observer, false)) })
	}
	return err
}

// observer returns one that tells verdicts about a response.
func (rp *player) observer(verdicts ...*limit.Verdict) *limit.Observer {
	o := new(limit.Observer)
	o.BeforeHeaders = func(status int, header http.Header) {
		for _, v := range verdicts {
			if !o.Left() {
				v.Answered(rp.now, status, header, header)
			}
		}
	}
	return o
}

// learn is ServeHTTP for a study: each zone decides as if there were no other, and the request is
// served whatever they say.
func (l limiter) learn(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, failed error) error {
	rp := l.rp
	var verdicts []*limit.Verdict
	for _, z := range l.Zones {
		alone := l.Directive
		alone.Zones, alone.Server = []*limit.Zone{z}, nil
		verdict, err := limit.Decide(r, failed, &alone, rp.app)
		if err != nil || verdict == nil || len(verdict.Outcomes) == 0 {
			continue
		}
		rp.awaited = rp.awaited || verdict.Awaits()
		verdicts = append(verdicts, verdict)
	}
	observer := rp.observer(verdicts...)
	err := observer.Serve(w, r, next)
	observer.Took(rp.took)
	for _, verdict := range verdicts {
		diff := 0.0
		for _, due := range verdict.Settle(observer, false) {
			diff = due.Diff
		}
		rp.study(&verdict.Outcomes[0], loggedOf(r), diff, rp.took)
	}
	return err
}

// A roomyStore admits everything: what limits there are does not matter.
type roomyStore struct {
	*memstore.Store // which stays empty
	now             func() leakybucket.Instant
}

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
	rp.now = then
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

// A keylessReporter counts requests whose key lacks a part.
type keylessReporter struct {
	limit.Reporter
	rp   *player
	zone *limit.Zone
}

// Count implements limit.Reporter.
func (r keylessReporter) Count(c limit.Count) {
	if c == limit.CountKeyless && !r.zone.Key.IsAddress() { // else there is a note of all such requests
		r.rp.keyless[r.zone.Name]++
	}
}

// run runs one request, after everything that has to happen before it arrives.
func (rp *player) run(req *accesslog.Request) {
	if req.Upgraded {
		return
	}
	if req.Asset() {
		if rp.assets++; rp.pagesOnly {
			return
		}
	}
	rp.advance(req.At)
	uri := req.URI
	if len(rp.fields) > 0 && rp.logsIn(req) { // logs hold no bodies, and a query carries fields too
		uri += map[bool]string{true: "&", false: "?"}[strings.Contains(uri, "?")] + strings.Join(rp.fields, "=&") + "="
	}
	r := newRequest(req, uri)
	if r == nil {
		rp.skipped++
		return
	}
	for name, value := range req.Headers() {
		r.Header[name] = append(r.Header[name], value)
	}
	w, server := &discarded{make(http.Header)}, rp.serverOf(req)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, server.Server)
	client := strings.Clone(req.ClientText) // which keys keep
	// What is no address must not be taken for the peer's own.
	if req.StandsIn || !req.Client.IsValid() {
		client = req.Client.String()
	}
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, client)
	rp.awaited, rp.took = false, 0
	_ = server.chain.ServeHTTP(w, r)
}

// logsIn reports whether a request counts as a login.
func (rp *player) logsIn(req *accesslog.Request) bool {
	return req.Method == http.MethodPost && (len(rp.logIns) == 0 || slices.ContainsFunc(rp.logIns, func(path string) bool {
		folder, all := strings.CutSuffix(path, "*")
		return all && strings.HasPrefix(req.Route(), folder) || req.Route() == path
	}))
}

// upstream answers as the log says.
func (rp *player) upstream(w http.ResponseWriter, r *http.Request) error {
	if !rp.awaited {
		return nil
	}
	req := loggedOf(r)
	status := req.Status
	if status < 100 || status > 599 {
		status = http.StatusOK
	}
	waited := max(0, req.Waited)
	if gjson.Get(req.Throttle, "decision").Str == limit.Delayed.String() { // in shadow nobody waits
		waited += time.Duration(gjson.Get(req.Throttle, "delay").Num * float64(time.Second))
	}
	rp.took = max(0, req.Duration-waited) // in zones of the throttle that handled it, as far as its line says
	// As good as always an error of Caddy's own, which leaves zones without an answer to measure.
	if req.Caddy && status >= 400 && req.Size == 0 && req.Method != http.MethodHead {
		return caddyhttp.HandlerError{StatusCode: status}
	}
	w.WriteHeader(status)
	if status == http.StatusSwitchingProtocols {
		return nil
	}
	_, err := io.Copy(w, &io.LimitedReader{N: max(0, req.Size)})
	return err
}

// completed is the state of all connections whose handshake is over.
var completed = &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13}

// newRequest returns the request of a log for an address without its headers, as net/http hands
// it to Caddy, or nil if net/http would refuse it.
func newRequest(req *accesslog.Request, uri string) *http.Request {
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
	ctx := context.WithValue(context.Background(), loggedKey{}, req)
	if req.Status == 499 { // the client has left, so nothing is refunded
		var leave context.CancelFunc
		ctx, leave = context.WithCancel(ctx)
		leave()
	}
	return r.WithContext(ctx)
}

// discarded is a response that nobody reads.
type discarded struct{ header http.Header }

// Header implements http.ResponseWriter.
func (d *discarded) Header() http.Header { return d.header }

// Write implements http.ResponseWriter.
func (d *discarded) Write(p []byte) (int, error) { return len(p), nil }

// ReadFrom implements io.ReaderFrom. Of a body only the size is known, and a log may say any.
func (d *discarded) ReadFrom(r io.Reader) (int64, error) { return r.(*io.LimitedReader).N, nil }

// WriteHeader implements http.ResponseWriter.
func (d *discarded) WriteHeader(int) {}
