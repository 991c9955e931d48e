package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// Caddy's FastCGI client sends "post" as POST, and "get" as POST too. Zones judge a
// request by the method that it sends. This file refuses the ways to ask for a method
// that Caddy judges itself, by what the client sent: an attacker would pass them.

var (
	methodPlaceholder = regexp.MustCompile(`http\.request\.(orig_)?method\b`)
	methodFunction    = regexp.MustCompile(`\bmethod\s*\(`)
)

var errMethodAsSent = errors.New("{method} and expressions with a method see what the client sent, and FastCGI sends post as POST: want the matcher method, such as match method POST")

// checkMethods refuses sets of matchers that look at the method as the client sent it.
// The matcher `method` itself is no such matcher within a zone.
func checkMethods(set caddy.ModuleMap) error {
	for name, raw := range set {
		if name != "not" && methodPlaceholder.Match(raw) || name == "expression" && methodFunction.Match(raw) {
			return errMethodAsSent
		}
	}
	return nil
}

// AsksMethod reports whether a word of a Caddyfile makes a matcher that checkMethods
// refuses.
func AsksMethod(word string) bool {
	return methodPlaceholder.MatchString(word) || methodFunction.MatchString(word)
}

// MethodsOf returns the matcher `method` of a set as it is written in a Caddyfile, or
// "" if the set has none, not even behind `not`.
func MethodsOf(set caddy.ModuleMap) string {
	if methods := matcherIn[[]string](set, "method"); methods != nil {
		return "method " + strings.Join(methods, " ")
	}
	for _, excluded := range excludedBy(set) {
		if methods := MethodsOf(excluded); methods != "" {
			return "not " + methods
		}
	}
	return ""
}

// CheckOuter checks the matchers of the directive itself, and refuses methods in them.
func CheckOuter(set caddy.ModuleMap) error {
	if methods := MethodsOf(set); methods != "" {
		return fmt.Errorf("the matcher of throttle asks for a method as the client sent it, and FastCGI sends post as POST, so post would pass unseen: want match %s in the zone, and no method before it", methods)
	}
	return cmp.Or(CheckMatcherSet(set), checkTails(set))
}
