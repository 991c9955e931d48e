package tests

import (
	"fmt"
	"strings"
	"testing"
)

// TestRefuseErrorHandsPlaceholdersToErrorRoutes: the site answers in its own way,
// with throttle's placeholders.
func TestRefuseErrorHandsPlaceholdersToErrorRoutes(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone errors {
			limit 2 1/m
			refusal error
		}
	}
	respond ok
	handle_errors 429 {
		respond "{err.status_code} {http.throttle.zone} {http.throttle.decision} {http.throttle.reason} {http.throttle.retry_after} {http.throttle.capacity}"
	}
}`, port)})
	eachProtocol(t, func(t *testing.T, protocol string) {
		v := newVisitor(t, protocol)
		b := v.pourUntilRefused(t, fmt.Sprintf("http://127.0.0.1:%d/", port))
		if got := b.refused.header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("got Cache-Control %q, want no-store", got)
		}
		want := fmt.Sprintf("429 errors refused capacity %.0f 2", b.refused.retryAfter(t).Seconds())
		if b.refused.body != want {
			t.Errorf("got %q from the error route, want %q", b.refused.body, want)
		}
	})
}

// TestRefusalPageOfTheOwner fills placeholders in, and never lets a client
// write HTML.
func TestRefusalPageOfTheOwner(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	page := writeFile(t, "busy.html", "<!doctype html><title>{http.throttle.zone}</title><p>{http.request.header.X-Name}</p><p>{http.throttle.retry_after} seconds</p>")
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone branded {
			limit 1 1/m
			refusal {
				status 503
				page %s
			}
		}
	}
	respond ok
}`, port, page)})
	v := newVisitor(t, "h1")
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	v.get(t, url)
	a := v.get(t, url, "X-Name", `<script>{http.request.uri}`)
	if a.status != 503 {
		t.Errorf("got status %d, want the zone's own 503", a.status)
	}
	want := fmt.Sprintf("<!doctype html><title>branded</title><p>&lt;script&gt;{http.request.uri}</p><p>%.0f seconds</p>", a.retryAfter(t).Seconds())
	if a.body != want {
		t.Errorf("got the page %q, want %q", a.body, want)
	}
	if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/html") {
		t.Errorf("got Content-Type %q, want text/html", got)
	}
}

// TestTheUpstreamNeverSeesRefusedRequests counts the requests that PHP ran.
func TestTheUpstreamNeverSeesRefusedRequests(t *testing.T) {
	t.Parallel()
	php := phpSite(t)
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle closed client_ip 2 1/d
	%s
	handle_errors {
		rewrite * /index.php
		%s
	}
}`, port, php.directives, php.directives)})
	v := newVisitor(t, "h1")
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	for n := range 10 {
		a := v.get(t, url)
		if ran := strings.Contains(a.body, php.executed); ran != (n < 2) {
			t.Errorf("got php run: %v for request %d, want it for the first 2 only, error routes included", ran, n+1)
		}
	}
}

// TestErrorRoutesAreNotCharged, whatever the error: the request was charged when
// it came.
func TestErrorRoutesAreNotCharged(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle entrance client_ip 5 1/d
	error 404
	handle_errors {
		throttle errors client_ip 1 1/d
		throttle entrance client_ip 5 1/d
		respond "not here" 404
	}
}`, port)})
	v := newVisitor(t, "h1")
	statuses := make(map[int]int)
	for range 8 {
		statuses[v.get(t, fmt.Sprintf("http://127.0.0.1:%d/", port)).status]++
	}
	if statuses[404] != 5 || statuses[429] != 3 {
		t.Errorf("got %v by status, want 5 of 404 and 3 of 429", statuses)
	}
	if got := c.decisions(t, "errors", "admitted") + c.decisions(t, "errors", "refused"); got != 0 {
		t.Errorf("got %d decisions in the error route, want none", got)
	}
}
