// Package overridefile reads files with overrides of a zone, one on each line, and notices
// when such a file has changed. Begin with [File].
package overridefile

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
)

// The bounds of a file.
const (
	LargestFile = 32 << 20 // bytes
	MostLines   = 200_000  // with overrides
)

// A Line is an override, and the number of its line.
type Line struct {
	perkey.Override
	Number int
}

// Syntax is how an override is written.
const Syntax = "<part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>]"

// ParseWords reads the words of an override.
func ParseWords(words []string) (o perkey.Override, err error) {
	n := len(words)
	switch {
	case n >= 3 && words[n-1] == "as":
		return o, errors.New("as has no name")
	case n >= 4 && words[n-2] == "as":
		o.As, words = words[n-1], words[:n-2]
	}
	limit := 1 // how many words the limit has
	if n = len(words); n > 0 && strings.Contains(words[n-1], "/") {
		limit = 2
	}
	if n <= limit {
		return o, errors.New("too few words")
	}
	o.Parts, o.Limit = words[:n-limit], strings.Join(words[n-limit:], " ")
	return o, nil
}

// Parse reads the text of a file: the words of an override on each line, with quotes
// and comments as in a Caddyfile. Errors name the file and the line.
func Parse(name string, text []byte) ([]Line, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("the file is empty, as if a write had failed: want at least a comment, such as # no overrides, at %s", name)
	}
	if !utf8.Valid(text) {
		i := bytes.IndexRune(text, utf8.RuneError)
		return nil, at(name, 1+bytes.Count(text[:i], []byte("\n")), errors.New("bytes that are no UTF-8: want UTF-8, or the part as sha256: and its digest"))
	}
	tokens, err := caddyfile.Tokenize(append(text, '\n'), name)
	if err != nil {
		return nil, fmt.Errorf("%w, at %s", err, name)
	}
	var lines []Line
	for len(tokens) > 0 {
		number := tokens[0].Line
		var words []string
		for len(tokens) > 0 && tokens[0].Line == number {
			word := tokens[0].Text
			switch {
			case word == "":
				return nil, at(name, number, errors.New("nothing between quotes: want a word"))
			case strings.Contains(word, "\n"):
				return nil, at(name, number, errors.New("a quote is not closed: want another one on the same line"))
			}
			words, tokens = append(words, word), tokens[1:]
		}
		o, err := ParseWords(words)
		if err != nil {
			return nil, at(name, number, fmt.Errorf("%w: want %s", err, Syntax))
		}
		if lines = append(lines, Line{o, number}); len(lines) > MostLines {
			return nil, at(name, number, fmt.Errorf("more than %d overrides: want fewer, such as networks in place of addresses", MostLines))
		}
	}
	return lines, nil
}

// at adds the place to an error, as errors of a Caddyfile have it.
func at(name string, line int, err error) error { return fmt.Errorf("%w, at %s:%d", err, name, line) }
