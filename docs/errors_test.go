package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// TestEachMessageOnThePageOfErrorsIsInTheCode takes the messages in the first column
// of the tables in errors-and-questions.md. In them <...> stands for words that
// differ, which are verbs of format strings in the code.
func TestEachMessageOnThePageOfErrorsIsInTheCode(t *testing.T) {
	page := check.Must(os.ReadFile("errors-and-questions.md"))(t)
	literals := stringLiterals(t)
	messages := messagesIn(string(page))
	check.That(t, len(messages) >= 25, "got %d messages on the page, want at least 25", len(messages))
	for _, message := range messages {
		check.That(t, formatOf(message).MatchString(literals), "got %q on the page, and no such message in the code", message)
	}
}

// TestThePageOfErrorsRepeatsNoMessage: a row has to say more than its message does.
func TestThePageOfErrorsRepeatsNoMessage(t *testing.T) {
	page := check.Must(os.ReadFile("errors-and-questions.md"))(t)
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| ") && strings.Contains(line, "As it says") {
			t.Errorf("got a row that says no more than its message: %s", line)
		}
	}
}

// remedy is the end of a message that says what to do.
var remedy = regexp.MustCompile(`: (add|compute|exempt|for|give|leave|list|name|put|raise|see|serve|set|use|want|write) `)

// TestEachLineOfTheLogIsOnAPage takes what the code logs from information on, but for
// the lines that say themselves what to do. A page may leave out the end of a message.
func TestEachLineOfTheLogIsOnAPage(t *testing.T) {
	var documented []string
	for _, name := range []string{"errors-and-questions.md", "logs-and-metrics.md"} {
		page := check.Must(os.ReadFile(name))(t)
		documented = append(documented, messagesIn(string(page))...)
	}
	n := 0
	for _, message := range logged(t) {
		n++
		said := func(d string) bool {
			d = strings.TrimSuffix(d, "...")
			return len(d) > 15 && strings.HasPrefix(message, d)
		}
		if !remedy.MatchString(message) && !slices.ContainsFunc(documented, said) {
			t.Errorf("got nothing about the line %q", message)
		}
	}
	check.That(t, n >= 25, "got %d messages in the code, want more", n)
}

// logged returns the messages that the code gives to loggers.
func logged(t *testing.T) (messages []string) {
	t.Helper()
	eachFile(t, func(file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			to, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Info", "Warn", "Error", "failed", "Failed"}, to.Sel.Name) {
				return true
			}
			if literal, ok := call.Args[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					messages = append(messages, text)
				}
			}
			return true
		})
	}, "../caddymodule", "../leakybucket/sharedstore") // what the rest of the library logs is for programs without Caddy
	return messages
}

// messagesIn returns the code in the first column of all tables.
func messagesIn(page string) []string {
	code := regexp.MustCompile("`([^`]+)`")
	var messages []string
	for line := range strings.Lines(page) {
		row := strings.ReplaceAll(line, `\|`, "\x00")
		if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| message ") {
			continue
		}
		cell, _, _ := strings.Cut(row[2:], " | ")
		for _, match := range code.FindAllStringSubmatch(cell, -1) {
			messages = append(messages, strings.ReplaceAll(match[1], "\x00", "|"))
		}
	}
	return messages
}

// formatOf returns an expression for the format string of a message. <...> may stand
// there as it is, too.
func formatOf(message string) *regexp.Regexp {
	variable := regexp.MustCompile(`<[^<>]+>`)
	var pattern strings.Builder
	end := 0
	for _, at := range variable.FindAllStringIndex(message, -1) {
		pattern.WriteString(regexp.QuoteMeta(message[end:at[0]]))
		pattern.WriteString(`(?:` + regexp.QuoteMeta(message[at[0]:at[1]]) + `|%(?:\[\d\])?(?:\.\d)?[a-z])`)
		end = at[1]
	}
	pattern.WriteString(regexp.QuoteMeta(message[end:]))
	return regexp.MustCompile(pattern.String())
}

// stringLiterals returns all string literals of the module's code, without tests,
// one a line.
func stringLiterals(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	eachFile(t, func(file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					all.WriteString(text + "\n")
				}
			}
			return true
		})
	}, "../caddymodule", "../leakybucket")
	return all.String()
}

// eachFile calls f with each file of the code below the folders, without tests and what
// helps them.
func eachFile(t *testing.T, f func(*ast.File), folders ...string) {
	t.Helper()
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && entry.Name() == "golden" {
				return filepath.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			f(file)
			return nil
		})
		check.OK(t, err)
	}
}
