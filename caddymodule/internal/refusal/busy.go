package refusal

import (
	"net/http"
	"strconv"
	"time"
)

// A Busy is a refusal because the upstream is busy.
type Busy struct {
	// Reload says that the page reloads by itself when the wait is over.
	Reload bool

	// Pass adds what the client is known by when it comes back to the headers. It is
	// called for navigations and forms only: browsers ask for everything else many times
	// at once, and would get as many passes. NoPass is called for those. If nil, there is none.
	Pass   func(http.Header)
	NoPass func()
}

// A Visit is what a request is for.
type Visit int

// The visits.
const (
	Navigation  Visit = iota // somebody opens a page
	Form                     // somebody sends one
	Script                   // a script or a program asks
	Subresource              // a page needs an image or a script, or nobody says what it is for
)

// VisitOf returns what a request is for, as far as its headers tell. Browsers have said
// it since 2023. Of others the Accept header tells.
func VisitOf(r *http.Request) Visit {
	switch mode, form := r.Header.Get("Sec-Fetch-Mode"), formFor(r.Header["Accept"]); {
	case mode == "navigate":
	case mode != "":
		if dest := r.Header.Get("Sec-Fetch-Dest"); dest != "" && dest != "empty" {
			return Subresource
		}
		return Script
	case form == inJSON || r.Header.Get("X-Requested-With") != "":
		return Script
	case form != inHTML && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		return Subresource
	}
	switch r.Method {
	case http.MethodGet:
		return Navigation
	case http.MethodHead:
		return Subresource
	}
	return Form
}

// announce adds the headers that a busy upstream's refusal has beyond those of any
// other, and returns what the request is for.
func (b *Busy) announce(header http.Header, r *http.Request, after time.Duration) Visit {
	visit := VisitOf(r)
	header.Add("Vary", "Cookie, Sec-Fetch-Mode")
	if visit == Navigation && b.Reload {
		header["Refresh"] = []string{strconv.FormatInt(WholeSeconds(after), 10)}
	}
	switch {
	case (visit == Navigation || visit == Form) && b.Pass != nil:
		b.Pass(header)
	case visit > Form && b.NoPass != nil:
		b.NoPass()
	}
	return visit
}

// formFor returns the form of the answer to a request.
func (f *Refusal) formFor(r *http.Request, visit Visit) form {
	switch {
	case f.Busy == nil:
		return formFor(r.Header["Accept"])
	case visit == Script:
		return inJSON
	case visit == Subresource:
		return inNothing
	}
	return inHTML
}
