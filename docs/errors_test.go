package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestEachMessageOnThePageOfErrorsIsInTheCode takes the messages in the first column
// of the tables in errors-and-questions.md. In them <...> stands for words that
// differ, which are verbs of format strings in the code.
func TestEachMessageOnThePageOfErrorsIsInTheCode(t *testing.T) {
	page, err := os.ReadFile("errors-and-questions.md")
	if err != nil {
		t.Fatal(err)
	}
	literals := stringLiterals(t)
	messages := messagesIn(string(page))
	if len(messages) < 80 {
		t.Errorf("got %d messages on the page, want at least 80", len(messages))
	}
	for _, message := range messages {
		if !formatOf(message).MatchString(literals) {
			t.Errorf("got %q on the page, and no such message in the code", message)
		}
	}
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
	for _, folder := range []string{"../caddymodule", "../leakybucket"} {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil {
						all.WriteString(text + "\n")
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}
