package engine

import (
	"context"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/detached"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
)

// An error route may ask the upstream, too. So a request that errs keeps its slots until
// its context ends, when the error route has answered it. One that errs before it takes a
// slot takes it here.

// serveError serves a request in an error route. It is charged nothing, and never queues:
// if it needs a slot and none is free, the answer is the error's status.
func (h *Handler) serveError(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	entries, turns := decision.ErrorSlots(h.asked(r, nil), h.app)
	if len(entries) == 0 && !turns {
		return h.serveInternal(w, r, next)
	}
	h.app.hold()
	defer h.app.release()
	call := &errorCall{h, r, settlement.Innermost(r)}
	if len(entries) > 0 {
		grant, result := h.app.Gate.Admit(r.Context(), clock.Now(h.app.Clock), entries, nil)
		if result.Why != admission.Admitted {
			failed, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
			f := refusal.Refusal{Status: response.StatusOf(failed)}
			return f.Write(w, r, body.Received(r))
		}
		decision.Hold(r, grant)
		body.Pace(r.Context(), w, r)
	}
	serve := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return h.serveInternal(w, r, next) })
	if turns {
		return detached.Serve(w, r, serve, call, h.app.Gate.Exiting)
	}
	var err error
	defer func() { call.Served(err) }()
	err = serve(w, r)
	return err
}

// An errorCall is what the error route does for a request that holds slots.
type errorCall struct {
	h *Handler
	r *http.Request

	*settlement.Observer // around the error route, or nil
}

// Served implements detached.Owner. The error route is the last handler, so all slots come
// free.
func (c *errorCall) Served(err error) {
	for res := decision.VerdictOf(c.r); res != nil; res = res.Next() {
		c.h.releaseAfter(c.r, res, err)
	}
}

// releaseAfter releases the slots of a request that was served, or, if err is not nil, once
// an error route has answered it.
func (h *Handler) releaseAfter(r *http.Request, res *decision.Verdict, err error) {
	if err == nil {
		res.Release()
		return
	}
	h.app.hold()
	context.AfterFunc(detached.Client(r.Context()), func() {
		defer h.app.release()
		res.Release()
	})
}

// Interface guards
var _ detached.Owner = (*errorCall)(nil)
