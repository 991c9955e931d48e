package refusal

import "strings"

// mostAccept is how many bytes of the Accept headers are parsed, which bounds the
// work for hostile clients. Browsers send about 150.
const mostAccept = 4 << 10

// A preference says how much a client wants a media type: by its weight, then by
// how specific the range is that names it, then by how early that range stands.
type preference struct {
	weight      int // in thousandths; 0 excludes the type
	specificity int // 3 for the type itself, 2 for type/*, 1 for */*, 0 for no range
	order       int // of the range, from the first on
}

// add records a range. The most specific range decides the weight (RFC 9110,
// section 12.5.1). Of equally specific ranges, the largest weight counts.
func (p *preference) add(specificity, weight, order int) {
	if specificity > p.specificity || specificity == p.specificity && weight > p.weight {
		*p = preference{weight, specificity, order}
	}
}

func (p *preference) highest() bool { return p.weight == 1000 && p.specificity == 3 }

// A form is what the answer to a client is written in.
type form int

const (
	inHTML  form = iota // what browsers ask for when somebody opens a page
	inBrief             // HTML without style and script: for images and scripts, and for curl
	inJSON
	inNothing
)

// formFor returns the form that a client prefers. Clients without a preference,
// such as curl, get HTML.
func formFor(accept []string) form {
	switch json, html := preferences(accept); {
	case json.over(html):
		return inJSON
	case html.specificity == 3:
		return inHTML
	}
	return inBrief
}

// over reports whether a client wants the type of p rather than another.
func (p preference) over(other preference) bool {
	switch {
	case p.weight != other.weight:
		return p.weight > other.weight
	case p.weight == 0:
		return false
	case p.specificity != other.specificity:
		return p.specificity > other.specificity
	}
	return p.order < other.order
}

// preferences returns how much a client wants JSON, and HTML.
func preferences(accept []string) (json, html preference) {
	left, order := mostAccept, 0
	for _, header := range accept {
		if left <= 0 {
			break
		}
		header = header[:min(len(header), left)]
		left -= len(header) + 1
		for header != "" {
			var element string
			element, header = cut(header, ',')
			order++
			kind, parameters := cut(element, ';')
			kind = strings.TrimSpace(kind)
			switch {
			case kind == "":
			case kind == "*/*", kind == "*": // the latter is what Java sends
				json.add(1, weight(parameters), order)
				html.add(1, weight(parameters), order)
			case strings.EqualFold(kind, "text/*"):
				html.add(2, weight(parameters), order)
			case strings.EqualFold(kind, "application/*"):
				json.add(2, weight(parameters), order)
			case strings.EqualFold(kind, "text/html"), strings.EqualFold(kind, "application/xhtml+xml"):
				html.add(3, weight(parameters), order)
			case isJSON(kind):
				json.add(3, weight(parameters), order)
			}
			// Nothing beats the first that is named without a weight, as browsers and
			// most programs do.
			if html.highest() || json.highest() {
				return json, html
			}
		}
	}
	return json, html
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
	whole, fraction, _ := strings.Cut(text, ".")
	if whole == "" && fraction == "" || strings.Trim(whole, "0") != "" {
		return 1000 // 1, more than that, or nonsense
	}
	n := 0
	for i := range 3 {
		n *= 10
		if i < len(fraction) {
			if fraction[i] < '0' || fraction[i] > '9' {
				return 1000
			}
			n += int(fraction[i] - '0')
		}
	}
	return n
}
