package tune

import (
	"encoding/json"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

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
			var server caddyhttp.Server
			check.OK(t, json.Unmarshal([]byte(`{"routes":[`+test.routes+`]}`), &server))
			stripped := stripRoutes(server.Routes, false)
			got := check.Must(json.Marshal(stripped))(t)
			check.That(t, string(got) == "["+test.want+"]", "got %s, want [%s]", got, test.want)
		})
	}
}
