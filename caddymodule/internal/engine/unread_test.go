package engine

import (
	"encoding/json"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

func TestVerdictsAreKeptWhereSomebodyMayReadThem(t *testing.T) {
	const throttle, proxy = `{"handler":"throttle","zone":[{"name":"a","refusal":{"error":true}}]}`, `{"handler":"reverse_proxy"}`
	const slots = `{"handler":"in_flight"}`
	nothing, everything := decision.Unread{Verdict: true, Placeholders: true, Record: true}, decision.Unread{}
	for config, want := range map[string]decision.Unread{
		`{"routes":[{"handle":[` + throttle + `,` + proxy + `]}]}`:                                                                                                            nothing,
		`{"routes":[{"handle":[` + throttle + `],"terminal":true},{"handle":[` + throttle + `]}]}`:                                                                            nothing,
		`{"routes":[{"handle":[` + throttle + `]},{"handle":[` + throttle + `]}]}`:                                                                                            {Placeholders: true},
		`{"routes":[{"handle":[{"handler":"subroute","routes":[{"handle":[` + throttle + `,` + throttle + `]}]}]}]}`:                                                          {Placeholders: true},
		`{"routes":[{"match":[{"throttle_blocked":{}}],"handle":[` + throttle + `]}]}`:                                                                                        {Placeholders: true, Record: true},
		`{"routes":[{"handle":[` + throttle + `,` + slots + `]}]}`:                                                                                                            {Verdict: true, Placeholders: true},
		`{"routes":[{"handle":[` + throttle + `]},{"handle":[` + slots + `]}]}`:                                                                                               {Verdict: true, Placeholders: true},
		`{"routes":[{"handle":[` + slots + `],"terminal":true},{"handle":[` + throttle + `]}]}`:                                                                               nothing,
		`{"routes":[{"handle":[` + throttle + `,{"handler":"headers","response":{"set":{"X-Zone":["{http.throttle.zone}"]}}}]}]}`:                                             everything,
		`{"routes":[{"handle":[` + throttle + `]}],"errors":{"routes":[{"match":[{"vars":{"{http.throttle.blocked}":["true"]}}],"handle":[{"handler":"static_response"}]}]}}`: everything,
		`{"routes":[{"handle":[{"handler":"templates"},` + throttle + `]}]}`:                                                                                                  everything,
		`{"routes":[{"handle":[` + throttle + `,{"handler":"of_a_plugin"}]}]}`:                                                                                                everything,
		`{"routes":[{"handle":[` + throttle + `,{"handler":"invoke","name":"again"}]}],"named_routes":{"again":{"handle":[` + throttle + `]}}}`:                               everything,
		`{"routes":[{"handle":[` + throttle + `,{"handler":"file_server","browse":{"template_file":"of the owner"}}]}]}`:                                                      everything,
	} {
		server := new(caddyhttp.Server)
		if err := json.Unmarshal([]byte(config), server); err != nil {
			t.Fatal(err)
		}
		if got := unreadIn(server); got != want {
			t.Errorf("%s: got %+v, want %+v", config, got, want)
		}
	}
	gone := &caddyhttp.Server{Routes: caddyhttp.RouteList{{Handlers: []caddyhttp.MiddlewareHandler{new(caddyhttp.StaticResponse)}}}}
	if got := unreadIn(gone); got != everything {
		t.Errorf("a route whose config is gone: got %+v, want %+v", got, everything)
	}
}
