package body

import "net/http"

// Whole reports whether a request has no body, or one that was received.
func Whole(r *http.Request) bool { return none(r) || Of(r) != nil }
