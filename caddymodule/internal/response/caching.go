package response

import (
	"iter"
	"net/http"
	"slices"
	"strings"
)

// Private reports whether only the client may get a response, and no cache keeps it for
// others. A response may leave that open, as long as nothing allows caches to keep it.
func Private(header http.Header) bool {
	if len(header["Age"]) > 0 {
		return false // a cache has answered
	}
	for name, lines := range header {
		if targeted(name) && slices.ContainsFunc(lines, allows) {
			return false
		}
	}
	var private, revalidated, lasting bool
	for name, value := range directives(header) {
		switch name {
		case "public", "s-maxage":
			return false
		case "no-store":
			private = true
		case "private": // with a value, it is about some headers only
			private = private || value == ""
		case "no-cache":
			revalidated = revalidated || value == ""
		case "max-age":
			lasting = strings.Trim(value, `"0`) != ""
		}
	}
	return private || revalidated || !lasting && len(header["Expires"]) == 0
}

// SaysPrivate reports whether Cache-Control forbids caches to keep a response for others. If
// there is no such word, they may decide for themselves, and a handler around may add one.
func SaysPrivate(header http.Header) bool {
	for name, value := range directives(header) {
		if name == "no-store" || name == "private" && value == "" {
			return true
		}
	}
	return false
}

// KeepPrivate says that caches may not keep a response for others, unless it says so
// already. A response that is only to be revalidated may be kept with its cookies.
func KeepPrivate(header http.Header) {
	if !SaysPrivate(header) {
		header.Set("Cache-Control", strings.Join(append(slices.Clone(header["Cache-Control"]), "private"), ", "))
	}
}

// DropTargeted removes headers for some caches only, which would go by them rather than
// by Cache-Control. A handler around the one that answers may have set them for all
// answers.
func DropTargeted(header http.Header) {
	for name := range header {
		if targeted(name) {
			delete(header, name)
		}
	}
}

// targeted reports whether a header is for some caches only: as RFC 9213 has it, such as
// Cloudflare-CDN-Cache-Control, or as caches had them before.
func targeted(name string) bool {
	return strings.HasSuffix(name, "-Cache-Control") || name == "Surrogate-Control" || name == "Edge-Control" || name == "X-Accel-Expires"
}

// allows reports whether a line of such a header may allow a cache to keep the response.
func allows(line string) bool {
	return line != "0" && !strings.Contains(line, "no-store") && !strings.Contains(line, "private")
}

// directives iterates over those of Cache-Control, in lower case, and their values.
func directives(header http.Header) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, line := range header["Cache-Control"] {
			for directive := range strings.SplitSeq(line, ",") {
				name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
				if !yield(strings.ToLower(name), value) {
					return
				}
			}
		}
	}
}
