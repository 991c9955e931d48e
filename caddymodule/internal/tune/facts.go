package tune

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
)

// LogFacts are what the first requests of a log have.
type LogFacts struct {
	Hosts                              bool // requests name them
	caddy, durations                   bool
	cookies, redacted                  bool
	authorization, redactedCredentials bool
}

// FactsOf returns what the first requests of a log have.
func FactsOf(first []*accesslog.Request) (f LogFacts) {
	for _, req := range first {
		f.caddy = f.caddy || req.Format == accesslog.Caddy
		f.Hosts = f.Hosts || req.Host != ""
		f.durations = f.durations || req.Duration >= 0
		for name, value := range req.Headers() {
			secret := value == accesslog.Redacted
			switch name {
			case "Cookie":
				f.cookies, f.redacted = f.cookies || !secret, f.redacted || secret
			case "Authorization":
				f.authorization, f.redactedCredentials = f.authorization || !secret, f.redactedCredentials || secret
			}
		}
	}
	return f
}

// Lacks returns why a zone cannot be replayed, or "".
func (f *LogFacts) Lacks(z *config.Zone) string {
	for _, k := range z.Key.Given() {
		switch {
		case k.Source == "form":
			return "its key is the form field " + strconv.Quote(k.Name) + ", and logs hold no bodies"
		case k.Source == "cookie", strings.Contains(k.Source, "{http.request.cookie."), k.Source == "header" && http.CanonicalHeaderKey(k.Name) == "Cookie":
			if why := f.lacksSecret("cookies", f.cookies, f.redacted); why != "" {
				return "its key is a cookie, " + why
			}
		case k.Source == "basic_user", k.Source == "header" && http.CanonicalHeaderKey(k.Name) == "Authorization":
			if why := f.lacksSecret("credentials", f.authorization, f.redactedCredentials); why != "" {
				return "its key is in the header Authorization, " + why
			}
		case strings.Contains(k.Source, "{http.auth."):
			return "its key is the user who has authenticated, and a replay authenticates nobody"
		case k.Source == "header" && !f.caddy && http.CanonicalHeaderKey(k.Name) != "User-Agent" && http.CanonicalHeaderKey(k.Name) != "Referer":
			return "its key is the header " + strconv.Quote(k.Name) + ", which combined logs do not hold"
		}
	}
	for _, cost := range z.Cost {
		if strings.HasPrefix(cost.Value, "body_items") || strings.HasPrefix(cost.Value, "body_bytes") && !f.caddy {
			return "its cost is in the body, and logs hold no bodies"
		}
	}
	switch s := z.Settle; {
	case s == nil:
	case s.Source == "header" && s.After:
		return "it charges what a response header says, which logs do not hold"
	case s.Source == "seconds" && !f.durations:
		return "it settles seconds, and the log has no durations"
	}
	return ""
}

func (f *LogFacts) lacksSecret(what string, readable, redacted bool) string {
	switch {
	case readable:
		return ""
	case redacted:
		return "and Caddy has logged " + what + " as REDACTED: set log_credentials in the servers options to log them"
	case !f.caddy:
		return "and combined logs hold no " + what
	}
	return ""
}

// Doubts says what a replay of a zone leaves out.
func (f *LogFacts) Doubts(z *config.Zone) (notes []string) {
	if z.Settle != nil && z.Settle.Source == "header" {
		notes = append(notes, fmt.Sprintf("zone %s settles what a response header says, which logs do not hold: its charges stay as they were reserved.", z.Name))
	}
	if z.InFlight != nil && !f.durations {
		notes = append(notes, fmt.Sprintf("zone %s limits requests in flight, and the log has no durations: every request counts as answered at once.", z.Name))
	}
	if z.TrustDevices != nil {
		notes = append(notes, fmt.Sprintf("zone %s trusts devices, whose cookies logs do not hold: all requests are charged to the account.", z.Name))
	}
	return notes
}
