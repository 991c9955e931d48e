package refusal

import (
	"strings"
)

// mostAccept is how many bytes of the Accept headers are parsed, which bounds the
// work for hostile clients. Browsers send about 150.
const mostAccept = 4 << 10

// A form is what the answer to a client is written in.
type form int

const (
	inHTML  form = iota // what browsers ask for when somebody opens a page
	inBrief             // HTML without style and script: for images and scripts, and for curl
	inJSON
	inGRPC
)

// formFor returns the form that a client prefers. Clients that name neither HTML nor JSON,
// such as curl, get HTML.
func formFor(accept []string) form { return form(firstOf(accept, mostAccept, formOf, int(inBrief))) }

// formOf returns the form of a media type, or -1. A kind of JSON is JSON, such as
// application/problem+json.
func formOf(kind string) int {
	const suffix = "+json"
	switch {
	case strings.EqualFold(kind, "text/html"), strings.EqualFold(kind, "application/xhtml+xml"):
		return int(inHTML)
	case strings.EqualFold(kind, "application/json"), len(kind) > len(suffix) && strings.EqualFold(kind[len(kind)-len(suffix):], suffix):
		return int(inJSON)
	}
	return -1
}

// mostLanguages is how much of the Accept-Language headers is looked at. Browsers
// send less than 100 bytes.
const mostLanguages = 1 << 10

// preferred returns the index of the language that a client wants most, and English if it
// wants none.
func preferred(accept []string) int { return firstOf(accept, mostLanguages, spoken, 0) }

// spoken returns the index of the language of a tag such as de or pt-BR, or -1.
func spoken(tag string) int {
	if len(tag) < 2 || len(tag) > 2 && tag[2] != '-' {
		return -1
	}
	first, second := tag[0]|0x20, tag[1]|0x20 // in lower case, if they are letters
	for i := range languages {
		if tag := languages[i].Tag; tag[0] == first && tag[1] == second {
			return i
		}
	}
	return -1
}

// firstOf returns the first of what headers name that find knows, or otherwise if it knows
// none. Clients name first what they want most, so their weights are not read. Only so many
// bytes are looked at.
func firstOf(headers []string, left int, find func(name string) int, otherwise int) int {
	for _, header := range headers {
		if left <= 0 {
			break
		}
		header = header[:min(len(header), left)]
		left -= len(header) + 1
		for element := range strings.SplitSeq(header, ",") {
			name, _, _ := strings.Cut(element, ";")
			if i := find(strings.TrimSpace(name)); i >= 0 {
				return i
			}
		}
	}
	return otherwise
}
