package caddyfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
)

// syntaxOfSource returns how a source with a word after it is written.
func syntaxOfSource(source string) string {
	_, after, _ := strings.Cut(config.KeySources, source+" ")
	syntax, _, _ := strings.Cut(after, ", ")
	syntax, _, _ = strings.Cut(syntax, " or ")
	return source + " " + syntax
}

// namedSources are the key sources with a word after them.
var namedSources = []string{"header", "cookie", "query", "form", "text"}

// parseKey reads the key sources of a Caddyfile, up to the first detail of key. It returns
// how many words that were.
func parseKey(words []string) (key []config.KeySource, used int, err error) {
	i := 0
	for ; i < len(words) && before(keyDetails, words[i:i+1]) > 0; i++ {
		source := config.KeySource{Source: words[i]}
		if source.Source == "fold" {
			return nil, i, errors.New("parsing key: \"fold\" goes with form <field> and basic_user only: want form <field> fold <word> or basic_user fold <word>")
		}
		if slices.Contains(namedSources, words[i]) {
			if i++; i == len(words) {
				return nil, i, fmt.Errorf("parsing key: %q needs a word after it: want %s", source.Source, syntaxOfSource(source.Source))
			}
			if source.Source == "text" {
				source.Text = words[i]
			} else {
				source.Name = words[i]
			}
		}
		if source.Folds() && i+1 < len(words) && words[i+1] == "fold" {
			if i += 2; i >= len(words) {
				return nil, i, errors.New("parsing key: \"fold\" needs a word after it: want fold wordpress or fold email")
			}
			source.Fold = words[i]
		}
		key = append(key, source)
	}
	return key, i, nil
}
