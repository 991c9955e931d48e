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
	Person Looks = "person"      // it loads assets, as browsers do, and does not call itself a robot
	Many   Looks = "many people" // an office, a school or a mobile network behind one address
	Robot  Looks = "robot"
)

// manyAgents is from how many different user agents on an address looks like many
// people.
const manyAgents = 5

const (
	// A person has loaded fewestAssets, and one for personPages other requests: most files
	// come from the browser's cache after the first page.
	fewestAssets = 2
	personPages  = 20
)

// LooksLike judges a client by how many of its requests were for static assets, and by
// its user agents.
func LooksLike(requests, assets int64, agents *Agents) Looks {
	switch {
	case assets < fewestAssets || assets*(personPages+1) < requests || agents.Robots():
		return Robot
	case agents.Count() >= manyAgents && assets*5 >= requests:
		return Many
	}
	return Person
}

// robotWords are what programs call themselves, which browsers do not.
var robotWords = strings.Fields("bot crawl spider slurp scrap fetch feed archiv monitor preview http:// https:// python go-http okhttp libwww axios node")

// robot reports whether a user agent names a program. Bare words such as "-" are no
// browsers either.
func robot(agent string) bool {
	agent = strings.ToLower(agent)
	names := func(word string) bool { return strings.Contains(agent, word) }
	begins := func(word string) bool { return strings.HasPrefix(agent, word) }
	return agent == "-" || slices.ContainsFunc([]string{"curl", "wget", "java/"}, begins) || slices.ContainsFunc(robotWords, names)
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
