// Package body keeps what clients send and upstreams answer until somebody takes it. Begin with
// [Store.Receive].
//
// A [Store] keeps whole bodies of requests until an upstream takes them, and responses until
// their clients do: in memory, and what is too long for that in a file. Nobody waits for room.
package body

import "net/http"

// None reports whether a request has no body.
func None(r *http.Request) bool {
	return r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0
}

// Whole reports whether a request has no body, or one that was received.
func Whole(r *http.Request) bool { return None(r) || Of(r) != nil }
