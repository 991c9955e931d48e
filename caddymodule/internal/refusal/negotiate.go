package refusal

import (
	"strconv"
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
	inNothing
)

// formFor returns the form that a client prefers. Clients that name neither HTML nor JSON,
// such as curl, get HTML.
func formFor(accept []string) form { return form(heaviest(accept, mostAccept, formOf, int(inBrief))) }

// formOf returns the form of a media type, or -1.
func formOf(kind string) int {
	switch {
	case strings.EqualFold(kind, "text/html"), strings.EqualFold(kind, "application/xhtml+xml"):
		return int(inHTML)
	case isJSON(kind):
		return int(inJSON)
	}
	return -1
}

// heaviest returns what a client wants most of what its headers name (RFC 9110, section
// 12.4.2), or otherwise if it names nothing that find knows. Of equal weights the first
// counts. Only so many bytes are looked at.
func heaviest(headers []string, left int, find func(name string) int, otherwise int) int {
	best, most := otherwise, 0
	for _, header := range headers {
		if left <= 0 {
			break
		}
		header = header[:min(len(header), left)]
		left -= len(header) + 1
		for header != "" && most < 1000 {
			var element string
			element, header = cut(header, ',')
			name, parameters := cut(element, ';')
			if i := find(strings.TrimSpace(name)); i >= 0 {
				if w := weight(parameters); w > most {
					best, most = i, w
				}
			}
		}
	}
	return best
}

// isJSON reports whether a media type is JSON, or a kind of it such as
// application/problem+json.
func isJSON(kind string) bool {
	const suffix = "+json"
	return strings.EqualFold(kind, "application/json") ||
		len(kind) > len(suffix) && strings.EqualFold(kind[len(kind)-len(suffix):], suffix)
}

// cut cuts a list at its first separator that is not within quotes.
func cut(list string, separator byte) (first, rest string) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == separator && !quoted:
			return list[:i], list[i+1:]
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		}
	}
	return list, ""
}

// weight returns the weight of a range by its parameters, in thousandths. A
// missing or malformed weight is 1.
func weight(parameters string) int {
	for parameters != "" {
		var parameter string
		parameter, parameters = cut(parameters, ';')
		name, value, _ := strings.Cut(parameter, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			return thousandths(strings.TrimSpace(value))
		}
	}
	return 1000
}

// thousandths reads a number from 0 to 1. Java's ".2" is one, too.
func thousandths(text string) int {
	q, err := strconv.ParseFloat(text, 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return 1000 // more than 1, or nonsense
	}
	return int(q*1000 + 1e-6) // no more than three digits
}
