// Package fold turns the spellings of an account's name that an application takes for
// one into one text, so that they share a bucket.
package fold

import "strings"

// A Func folds a name. It returns false if the application may take the name for
// several ones. The result is "" only for blank names.
type Func func(name string) (folded string, sure bool)

// blanks are what PHP's trim and C's isspace take for blank, and NUL.
const blanks = " \t\n\v\f\r\x00"

// Plain makes a name lower case, without the blanks around it.
func Plain(name string) (string, bool) {
	return strings.ToLower(strings.TrimSpace(strings.Trim(name, blanks))), true
}

// Email folds an address: lower case in its local part and its domain, without blanks
// around it. It folds nothing else: dots and +tags are part of the address for most
// hosts, and a domain in Punycode is another text than the domain in Unicode.
func Email(address string) (string, bool) { return Plain(address) }
