package routes

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// A Way is what requests have met before a handler.
type Way struct {
	Rooted   bool     // something may have set the site's root
	Hosted   bool     // matchers let only certain host names get here
	Narrowed bool     // matchers other than host let only some requests get here
	Answered string   // the handler that has answered all of them, so that none gets here
	PHP      bool     // those that run PHP have been answered
	Zones    []string // of the throttle handlers that have seen all of them, unless these are provisioned

	Site   []string // the hosts of the server's own route; none means all
	inSite bool     // Site is set
}

// A Walk visits the handlers of a server in the order of requests.
type Walk struct {
	Named map[string]*caddyhttp.Route // the named routes of the server

	// Visit is called with each handler, its place and what is before it. The place is
	// that of Caddy's API: apps/http/servers/<name>/routes/<n>/handle/<n>... Visit returns the
	// zones of a throttle handler.
	Visit func(h *Handler, place string, way Way) (zones []string)

	invoked map[string]bool // named routes, which may invoke each other endlessly
}

// Routes visits the handlers of routes, and returns the way of requests behind them.
func (w *Walk) Routes(routes caddyhttp.RouteList, place string, way Way) Way {
	for i := 0; i < len(routes); {
		end := i + 1
		for group := routes[i].Group; group != "" && end < len(routes) && routes[end].Group == group; {
			end++
		}
		way = w.alternatives(routes[i:end], place, i, way)
		i = end
	}
	return way
}

// alternatives visits routes of which a request takes the first that matches.
func (w *Walk) alternatives(routes caddyhttp.RouteList, place string, first int, way Way) Way {
	var through []Way // of those that leave a route
	rest, taken := way, false
	for i := range routes {
		route, into := &routes[i], rest
		hosts, each, alone := Hosts(route)
		into.Narrowed, into.Hosted = into.Narrowed || !alone, into.Hosted || each && certain(hosts)
		if !into.inSite {
			into.Site, into.inSite = hosts, true
		}
		out := w.handlers(route, place+"/"+strconv.Itoa(first+i), into)
		rest.PHP = rest.PHP || out.Answered != "" && matchesPHP(route)
		taken = taken || !Matched(route)
		if !route.Terminal {
			through = append(through, out)
		}
	}
	if !taken || len(through) == 0 {
		through = append(through, rest)
	}
	before := way
	way = through[0]
	for _, other := range through[1:] {
		way.join(&other)
	}
	way.Narrowed, way.Hosted, way.Site, way.inSite = before.Narrowed, before.Hosted, before.Site, before.inSite
	return way
}

// join adds requests that have gone another way.
func (w *Way) join(other *Way) {
	w.Rooted = w.Rooted || other.Rooted
	w.PHP = (w.PHP || w.Answered != "") && (other.PHP || other.Answered != "")
	if other.Answered == "" {
		w.Answered = ""
	}
	w.Zones = slices.DeleteFunc(slices.Clone(w.Zones), func(zone string) bool { return !slices.Contains(other.Zones, zone) })
}

// handlers visits the handlers of one route.
func (w *Walk) handlers(route *caddyhttp.Route, place string, way Way) Way {
	for i, h := range handlersOf(route) {
		at := place + "/handle/" + strconv.Itoa(i)
		zones := w.Visit(&h, at, way)
		w.inside(h.Raw, at, way)
		switch {
		case h.Name == "subroute":
			way = w.Routes(h.Routes, at+"/routes", way)
		case h.Name == "invoke" && w.Named[h.Invoked] != nil && !w.invoked[h.Invoked]:
			way = w.named(h.Invoked, at, way)
		case h.Answers():
			way.Answered = cmp.Or(way.Answered, h.Name)
		}
		way.Zones = slices.Concat(way.Zones, zones)
		way.Rooted = way.Rooted || h.Name == "vars" && h.Root != nil
	}
	return way
}

// named visits a named route where it is invoked first.
func (w *Walk) named(name, place string, way Way) Way {
	if w.invoked == nil {
		w.invoked = make(map[string]bool)
	}
	w.invoked[name] = true
	return w.alternatives(caddyhttp.RouteList{*w.Named[name]}, place, 0, way)
}

// Rest visits the named routes that no handler has invoked.
func (w *Walk) Rest(place string, way Way) {
	for _, name := range slices.Sorted(maps.Keys(w.Named)) {
		if !w.invoked[name] {
			w.named(name, place+"/"+name, way)
		}
	}
}

// inside visits the routes within other handlers than subroutes, such as those for
// responses, and the error routes of subroutes.
func (w *Walk) inside(raw json.RawMessage, place string, way Way) {
	var list []json.RawMessage
	_ = json.Unmarshal(raw, &list) // or an object
	for i, element := range list {
		w.inside(element, place+"/"+strconv.Itoa(i), way)
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields) // or a list, or a value
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		var routes caddyhttp.RouteList
		switch at := place + "/" + name; {
		case name != "routes":
			w.inside(fields[name], at, way)
		case string(fields["handler"]) != `"subroute"` && json.Unmarshal(fields[name], &routes) == nil:
			w.Routes(routes, at, way)
		}
	}
}
