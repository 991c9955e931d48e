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

// busyForm returns the form of the answer to a request that finds the upstream busy, as far
// as its headers tell what it is for: a page if somebody opens one or sends a form, JSON for
// a script or a program, and nothing for what a page needs, such as an image, or if nobody
// says it. Browsers have said it since 2023. Of others the Accept header tells.
func busyForm(r *http.Request) form {
	switch mode, accepted := r.Header.Get("Sec-Fetch-Mode"), formFor(r.Header["Accept"]); {
	case mode == "navigate":
	case mode != "":
		if dest := r.Header.Get("Sec-Fetch-Dest"); dest != "" && dest != "empty" {
			return inNothing
		}
		return inJSON
	case accepted == inJSON || r.Header.Get("X-Requested-With") != "":
		return inJSON
	case accepted != inHTML && r.Method == http.MethodGet:
		return inNothing
	}
	if r.Method == http.MethodHead {
		return inNothing
	}
	return inHTML
}

// announce adds the headers that a busy upstream's refusal has beyond those of any
// other, and returns the form of the answer.
func (b *Busy) announce(header http.Header, r *http.Request, after time.Duration) form {
	in := busyForm(r)
	header.Add("Vary", "Cookie, Sec-Fetch-Mode")
	if in == inHTML && r.Method == http.MethodGet && b.Reload {
		header["Refresh"] = []string{strconv.FormatInt(WholeSeconds(after), 10)}
	}
	switch {
	case in == inHTML && b.Pass != nil:
		b.Pass(header)
	case in != inHTML && b.NoPass != nil:
		b.NoPass()
	}
	return in
}
