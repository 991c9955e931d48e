package record

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestTheRecordOfARequest(t *testing.T) {
	w := httptest.NewRecorder()
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodGet, "/", http.NoBody), caddy.NewReplacer(), w, new(caddyhttp.Server))
	got := Find(r.Context())
	check.That(t, got == nil, "got %+v, want none yet", got)
	check.Equal(t, Find(r.Context()).ClientOf(r), r.Context(), "without a record: another client than the request's context")
	one := Of(r)
	rewritten := r.WithContext(context.WithoutCancel(r.Context()))
	check.That(t, Of(rewritten) == one && Find(rewritten.Context()) == one, "got another record of the same request")
	one.Client = r.Context()
	check.Equal(t, Find(rewritten.Context()).ClientOf(rewritten), r.Context(), "another client than the record's")
}
