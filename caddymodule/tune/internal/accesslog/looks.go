package accesslog

import (
	"hash/maphash"
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

// A person has loaded fewestAssets, and one for personPages other requests: most files
// come from the browser's cache after the first page.
const fewestAssets, personPages = 2, 20

// LooksLike judges a client by how many of its requests were for static assets, and by
// its user agents.
func LooksLike(requests, assets int, agents *Agents) Looks {
	switch {
	case assets < fewestAssets || assets*(personPages+1) < requests || agents.Robots():
		return Robot
	case agents.Count() >= manyAgents && assets*5 >= requests:
		return Many
	}
	return Person
}

// robotWords are what programs call themselves, which browsers do not.
var robotWords = strings.Fields("bot crawl spider slurp scrap fetch feed archiv monitor preview http:// https:// python go-http okhttp libwww axios node inspectiontool mediapartners")

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

// MostAgents is how many user agents of a client are told apart.
const MostAgents = 64

// Agents counts the different user agents of one client, up to [MostAgents]: clients make
// them up. The zero value is empty, and small: most clients have one.
type Agents struct {
	hashes []uint32
	robots int // that name a robot
}

var agentSeed = maphash.MakeSeed()

// Add counts the user agent of a request, and reports whether it is a new one that names a
// robot.
func (a *Agents) Add(r *Request) bool {
	hash := uint32(maphash.String(agentSeed, r.Agent))
	if len(a.hashes) == MostAgents || slices.Contains(a.hashes, hash) {
		return false
	}
	a.hashes = append(a.hashes, hash)
	if !robot(r.Agent) {
		return false
	}
	a.robots++
	return true
}

// Robots reports whether at least half of the user agents name a robot.
func (a *Agents) Robots() bool { return a.robots > 0 && 2*a.robots >= a.Count() }

// Count returns how many there are, at least.
func (a *Agents) Count() int { return len(a.hashes) }
