package routes_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/fileserver"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy/fastcgi"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/routes"
)

func server(t *testing.T, config string) *caddyhttp.Server {
	t.Helper()
	s := new(caddyhttp.Server)
	if err := json.Unmarshal([]byte(config), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// Each line of want is a throttle handler: the zone, and what its requests have met.
func TestAWalkKnowsWhatRequestsHaveMet(t *testing.T) {
	const (
		answer = `{"handler":"static_response"}`
		php    = `{"match":[{"path":["*.php"]}],"handle":[{"handler":"reverse_proxy","transport":{"protocol":"fastcgi"}}]}`
	)
	throttle := func(zone string) string { return `{"handler":"throttle","zone":[{"name":"` + zone + `"}]}` }
	handle := func(handlers ...string) string { return `{"handle":[` + strings.Join(handlers, ",") + `]}` }
	with := func(fields, route string) string { return "{" + fields + "," + route[1:] }
	subroute := func(routes ...string) string {
		return `{"handler":"subroute","routes":[` + strings.Join(routes, ",") + `]}`
	}
	const path, group, host = `"match":[{"path":["/a"]}]`, `"group":"g"`, `"match":[{"host":["a.example"]}]`
	for _, test := range []struct {
		name, want string
		routes     []string
	}{
		{"nothing", "a", []string{handle(throttle("a"))}},
		{"an answer in the route", "a answered=static_response", []string{handle(answer, throttle("a"))}},
		{"an answer in the route before", "a answered=static_response", []string{handle(answer), handle(throttle("a"))}},
		{"an answer in a subroute", "a answered=static_response", []string{handle(subroute(handle(answer)), throttle("a"))}},
		{"an error", "a answered=error", []string{handle(`{"handler":"error"}`, throttle("a"))}},
		{"a file server", "a answered=file_server", []string{handle(`{"handler":"file_server"}`, throttle("a"))}},
		{"a file server that goes on", "a", []string{handle(`{"handler":"file_server","pass_thru":true}`, throttle("a"))}},
		{"a proxy that goes on", "a", []string{handle(`{"handler":"reverse_proxy","handle_response":[{"routes":[]}]}`, throttle("a"))}},
		{"an answer to some requests", "a", []string{with(path, handle(answer)), handle(throttle("a"))}},
		{"an answer to each alternative", "a php answered=static_response", []string{with(group+","+path, handle(answer)), with(group, handle(answer)), handle(throttle("a"))}},
		{"an answer to the last alternative", "a", []string{with(group+","+path, handle(`{"handler":"encode"}`)), with(group, handle(answer)), handle(throttle("a"))}},
		{"an alternative", "a", []string{with(group+","+path, handle(answer)), with(group, handle(throttle("a")))}},
		{"an answer of another site", "a", []string{with(host+`,"terminal":true`, handle(answer)), handle(throttle("a"))}},
		{"hosts", "a", []string{with(host, handle(throttle("a")))}},
		{"hosts and a path", "a narrowed", []string{with(host, handle(subroute(with(path, handle(throttle("a"))))))}},
		{"PHP", "a php", []string{handle(subroute(php)), handle(throttle("a"))}},
		{"PHP of some requests", "a", []string{with(path, handle(subroute(php))), handle(throttle("a"))}},
		{"a root", "a rooted", []string{handle(`{"handler":"vars","root":"/srv"}`), handle(throttle("a"))}},
		{"a root of some requests", "a rooted", []string{with(path, handle(`{"handler":"vars","root":"/srv"}`)), handle(throttle("a"))}},
		{"another var", "a", []string{handle(`{"handler":"vars","other":"/srv"}`), handle(throttle("a"))}},
		{"the root of another site", "a", []string{with(path+`,"terminal":true`, handle(`{"handler":"vars","root":"/srv"}`)), handle(throttle("a"))}},
		{"a named route", "a;n zones=a", []string{handle(throttle("a"), `{"handler":"invoke","name":"n"}`, `{"handler":"invoke","name":"n"}`)}},
		{"zones of all requests", "a;b zones=a", []string{handle(throttle("a")), handle(throttle("b"))}},
		{"zones of some requests", "a narrowed;b", []string{with(path, handle(throttle("a"))), handle(throttle("b"))}},
		{"responses of a proxy", "a", []string{handle(`{"handler":"reverse_proxy","handle_response":[{"routes":[` + handle(throttle("a")) + `]}]}`)}},
		{"errors of a subroute", "a", []string{handle(`{"handler":"subroute","routes":[],"errors":{"routes":[` + handle(throttle("a")) + `]}}`)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := server(t, `{"named_routes":{"n":`+handle(throttle("n"))+`},"routes":[`+strings.Join(test.routes, ",")+`]}`)
			var got []string
			walk := routes.Walk{Named: s.NamedRoutes, Visit: func(h *routes.Handler, place string, way routes.Way) []string {
				var config struct{ Zone []struct{ Name string } }
				if h.Name != "throttle" || json.Unmarshal(h.Raw, &config) != nil {
					return nil
				}
				line := config.Zone[0].Name
				for _, part := range []struct {
					is   bool
					text string
				}{{way.Rooted, " rooted"}, {way.Narrowed, " narrowed"}, {way.PHP, " php"}, {way.Answered != "", " answered=" + way.Answered}, {len(way.Zones) > 0, " zones=" + strings.Join(way.Zones, ",")}} {
					if part.is {
						line += part.text
					}
				}
				if !strings.HasPrefix(place, "routes/") {
					t.Errorf("got the place %s, want one in routes", place)
				}
				got = append(got, line)
				return []string{config.Zone[0].Name}
			}}
			walk.Routes(s.Routes, "routes", routes.Way{})
			if strings.Join(got, ";") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			walk.Rest("routes/rest", routes.Way{})
			named := slices.DeleteFunc(got, func(line string) bool { return !strings.HasPrefix(line, "n") })
			if len(named) != 1 {
				t.Errorf("got %q, want the named route once", named)
			}
		})
	}
}

func TestOnlyCertainNamesMakeARouteHosted(t *testing.T) {
	for hosts, want := range map[string]bool{
		"a.example": true, "a.example b.example": true, "*.a.example": true, "localhost": true, "192.0.2.1": true,
		"": false, "*": false, "*.*": false, "*.example": false, "a.example *": false, "*.*.example": false, "a.*.example": false,
	} {
		match := caddyhttp.MatchHost(strings.Fields(hosts))
		for _, test := range []struct {
			sets caddyhttp.MatcherSets
			want bool
		}{
			{caddyhttp.MatcherSets{{&match}}, want},
			{caddyhttp.MatcherSets{{match, caddyhttp.MatchPath{"/a"}}}, want},
			{caddyhttp.MatcherSets{{match}, {caddyhttp.MatchPath{"/a"}}}, false},
			{nil, false},
		} {
			inner := caddyhttp.Route{Handlers: []caddyhttp.MiddlewareHandler{new(caddyhttp.StaticResponse)}}
			outer := caddyhttp.Route{MatcherSets: test.sets, Handlers: []caddyhttp.MiddlewareHandler{&caddyhttp.Subroute{Routes: caddyhttp.RouteList{inner}}}}
			var got []bool
			walk := routes.Walk{Visit: func(h *routes.Handler, _ string, way routes.Way) []string {
				if h.Name == "static_response" {
					got = append(got, way.Hosted)
				}
				return nil
			}}
			walk.Routes(caddyhttp.RouteList{outer, inner}, "", routes.Way{})
			if !slices.Equal(got, []bool{test.want, false}) {
				t.Errorf("%q in %v: got %v, want %v, and false behind the route", hosts, test.sets, got, test.want)
			}
		}
	}
}

func TestStripLeavesWhatLeadsToThrottle(t *testing.T) {
	const throttle = `{"handler":"throttle","zone":[{"name":"a"}]}`
	for name, test := range map[string]struct{ routes, want string }{
		"others":             {`{"handle":[{"handler":"encode"},` + throttle + `]}`, `{"handle":[` + throttle + `]}`},
		"what comes after":   {`{"handle":[` + throttle + `,{"handler":"rewrite","uri":"/b"}]},{"match":[{"path":["/a"]}],"handle":[{"handler":"rewrite","uri":"/b"}]}`, `{"handle":[` + throttle + `]}`},
		"what comes before":  {`{"handle":[{"handler":"rewrite","uri":"/b"},{"handler":"map"},{"handler":"vars"}]},{"handle":[` + throttle + `]}`, `{"handle":[{"handler":"rewrite","uri":"/b"},{"handler":"map"},{"handler":"vars"}]},{"handle":[` + throttle + `]}`},
		"an answer":          {`{"match":[{"path":["/a"]}],"handle":[{"handler":"rewrite","uri":"/b"},{"handler":"metrics"},` + throttle + `]},{"handle":[` + throttle + `]}`, `{"match":[{"path":["/a"]}],"terminal":true},{"handle":[` + throttle + `]}`},
		"headers":            {`{"handle":[{"handler":"headers","request":{"set":{"A":["b"]}},"response":{"set":{"A":["b"]}}},` + throttle + `]}`, `{"handle":[{"handler":"headers","request":{"set":{"A":["b"]}}},` + throttle + `]}`},
		"a subroute":         {`{"handle":[{"handler":"subroute","routes":[{"handle":[` + throttle + `,{"handler":"encode"}]}],"errors":{}}]}`, `{"handle":[{"handler":"subroute","routes":[{"handle":[` + throttle + `]}]}]}`},
		"a subroute without": {`{"handle":[` + throttle + `,{"handler":"subroute","routes":[{"handle":[{"handler":"encode"}]}]}]}`, `{"handle":[` + throttle + `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			stripped := routes.Strip(server(t, `{"routes":[`+test.routes+`]}`))
			got, err := json.Marshal(stripped.Routes)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != "["+test.want+"]" {
				t.Errorf("got %s, want [%s]", got, test.want)
			}
		})
	}
}
