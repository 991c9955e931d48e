// Package check holds tests to what they want, in one line each. What is checked,
// a format with its values, may come last.
package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// OrShort returns how much of the same there is, with and without -short.
func OrShort[T any](full, short T) T {
	if testing.Short() {
		return short
	}
	return full
}

// OK ends the test if there is an error.
func OK(tb testing.TB, err error, about ...any) {
	if err != nil {
		tb.Helper()
		tb.Fatalf("%sgot error %v, want none", say(about), err)
	}
}

// NoError fails the test if there is an error, and goes on.
func NoError(tb testing.TB, err error, about ...any) {
	if err != nil {
		tb.Helper()
		tb.Errorf("%sgot error %v, want none", say(about), err)
	}
}

// Error fails the test unless the error reads as the text; "" is no error.
func Error(tb testing.TB, err error, want string, about ...any) {
	got := ""
	if err != nil {
		got = err.Error()
	}
	tb.Helper()
	Equal(tb, got, want, about...)
}

// Must gives a function's result to a test, or ends it with the error:
//
//	file := check.Must(os.Open(name))(t)
func Must[T any](result T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		OK(tb, err)
		return result
	}
}

// Equal fails the test unless got == want.
func Equal[T comparable](tb testing.TB, got, want T, about ...any) {
	if got != want {
		tb.Helper()
		tb.Error(differ(got, want, about))
	}
}

// That fails the test with this message, a format with its values, unless ok.
func That(tb testing.TB, ok bool, message string, values ...any) {
	if !ok {
		tb.Helper()
		tb.Errorf(message, values...)
	}
}

// Assume is That, and ends the test.
func Assume(tb testing.TB, ok bool, message string, values ...any) {
	if !ok {
		tb.Helper()
		tb.Fatalf(message, values...)
	}
}

// Need ends the test unless got == want.
func Need[T comparable](tb testing.TB, got, want T, about ...any) {
	if got != want {
		tb.Helper()
		tb.Fatal(differ(got, want, about))
	}
}

// Slices fails the test unless both have equal values in the same order.
func Slices[S ~[]E, E comparable](tb testing.TB, got, want S, about ...any) {
	if !slices.Equal(got, want) {
		tb.Helper()
		tb.Error(differ(got, want, about))
	}
}

// Contains fails the test unless part is in the text.
func Contains(tb testing.TB, text, part string, about ...any) {
	if !strings.Contains(text, part) {
		tb.Helper()
		tb.Errorf("%sgot\n%s\nwant %q in it", say(about), text, part)
	}
}

// Is fails the test unless the error is the wanted one, or wraps it.
func Is(tb testing.TB, err, want error, about ...any) {
	if !errors.Is(err, want) {
		tb.Helper()
		tb.Errorf("%sgot error %v, want %v", say(about), err, want)
	}
}

func say(about []any) string {
	if len(about) == 0 {
		return ""
	}
	return fmt.Sprintf(about[0].(string), about[1:]...) + ": "
}

func differ(got, want any, about []any) string {
	verb := "%+v"
	switch s := got.(type) {
	case string:
		verb = "%q"
		if strings.Contains(s, "\n") {
			verb = "\n%s\n"
		}
	case []string:
		verb = "%q"
	}
	return fmt.Sprintf("%sgot "+verb+", want "+verb, say(about), got, want)
}
