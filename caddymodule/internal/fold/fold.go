// Package fold turns the spellings of an account's name that an application takes for one
// into one text, so that they share a bucket. Begin with [Func].
package fold

import (
	"strings"

	"golang.org/x/text/unicode/norm"
)

// A Func folds a name. The result is "" for blank names, and [Odd] for names that
// nobody types.
type Func func(name string) string

// Odd is what all names that nobody types fold to. No other name folds to it.
const Odd = "\x00"

// blanks are what PHP's trim and C's isspace take for blank, and NUL.
const blanks = " \t\n\v\f\r\x00"

// Plain makes a name lower case, without the blanks around it.
func Plain(name string) string {
	return strings.ToLower(strings.TrimSpace(strings.Trim(name, blanks)))
}

// Email folds an address: one form of each letter (NFKC), lower case, without blanks
// around it. It folds nothing else: dots and +tags are part of the address for most
// hosts, and a domain in Punycode is another text than the domain in Unicode.
func Email(address string) string { return Plain(norm.NFKC.String(address)) }
