package accesslog

import (
	"net/http"
	"slices"
	"strings"
)

// A Looks says what a client looks like in a log.
type Looks string

// What clients look like.
const (
	Person Looks = "person"      // it loads assets, as browsers do
	Many   Looks = "many people" // an office, a school or a mobile network behind one address
	Robot  Looks = "robot"
)

// manyAgents is from how many different user agents on an address looks like many
// people.
const manyAgents = 5

// LooksLike judges a client by how many of its requests were for static assets, and by
// how many different user agents it had.
func LooksLike(requests, assets, agents int64) Looks {
	switch {
	case assets == 0:
		return Robot
	case agents >= manyAgents && assets*5 >= requests:
		return Many
	}
	return Person
}

// assets are the endings of files that browsers load with a page.
var assets = []string{
	"css", "js", "mjs", "map", "png", "jpg", "jpeg", "gif", "webp", "avif", "svg", "ico", "bmp",
	"woff", "woff2", "ttf", "otf", "eot", "mp3", "mp4", "webm", "ogg",
}

// Asset reports whether the request is probably for a static asset, by its ending.
func (r *Request) Asset() bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	name, _, _ := strings.Cut(r.URI, "?")
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 || len(name)-dot > 6 || strings.Contains(name, ".php") {
		return false
	}
	ending := name[dot+1:]
	return slices.Contains(assets, ending) || slices.Contains(assets, strings.ToLower(ending))
}

// Route returns the path of the request, without its query.
func (r *Request) Route() string {
	path, _, _ := strings.Cut(r.URI, "?")
	return path
}
