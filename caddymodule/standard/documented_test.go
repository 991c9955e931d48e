package standard_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/standard"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func logsPage(t *testing.T) string {
	t.Helper()
	page := check.Must(os.ReadFile("../../docs/logs-and-metrics.md"))(t)
	return string(page)
}

func TestTheDocumentationListsTheMetrics(t *testing.T) {
	page := logsPage(t)
	var documented []string
	for _, found := range regexp.MustCompile("(?m)^\\| `(caddy_throttle_\\w+)(\\{([\\w,]+)\\})?` \\|").FindAllStringSubmatch(page, -1) {
		documented = append(documented, found[1]+" "+found[3])
	}
	slices.Sort(documented)
	ctx := check.Must(caddy.ProvisionContext(&caddy.Config{AppsRaw: caddy.ModuleMap{"throttle": []byte(`{}`)}}))(t)
	check.Must(ctx.LoadModuleByID("caddy.listeners.throttle_blocked", nil))(t)
	descs := make(chan *prometheus.Desc, 1000)
	ctx.GetMetricsRegistry().Describe(descs)
	close(descs)
	var registered []string
	for desc := range descs {
		found := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(desc.String())
		check.Assume(t, found != nil, "got the description %s", desc)
		if strings.HasPrefix(found[1], "caddy_throttle_") {
			registered = append(registered, found[1]+" "+found[2])
		}
	}
	slices.Sort(registered)
	check.That(t, slices.Equal(documented, registered), "got the metrics\n%s\nin the documentation, want\n%s", strings.Join(documented, "\n"), strings.Join(registered, "\n"))
	for _, name := range regexp.MustCompile(`caddy_throttle_\w+`).FindAllString(page, -1) {
		name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "") // of a histogram
		if name != "caddy_throttle_" && !slices.ContainsFunc(registered, func(line string) bool { return strings.HasPrefix(line, name+" ") }) {
			t.Errorf("got a query for %s, which is no metric", name)
		}
	}
}

func TestTheDocumentationListsTheFieldsOfTheAccessLog(t *testing.T) {
	_, table, _ := strings.Cut(logsPage(t), "\n| field | is |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for _, found := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, found[1])
	}
	slices.Sort(documented)
	var written []string
	source := check.Must(os.ReadFile(filepath.Join("..", "internal", "limit", "verdict.go")))(t)
	for _, found := range regexp.MustCompile(`(?:enc\.Add\w+|zap\.Objects)\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		written = append(written, found[1])
	}
	slices.Sort(written)
	check.Slices(t, documented, written, "the fields in the documentation")
}

// The messages in the table of the log are those that the code logs, as far as they
// are not cut by dots.
func TestTheDocumentationQuotesTheLog(t *testing.T) {
	_, table, _ := strings.Cut(logsPage(t), "\n| message | when | fields |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var code strings.Builder
	for _, folder := range []string{"..", "../*", "../internal/*"} {
		files := check.Must(filepath.Glob(folder + "/*.go"))(t)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source := check.Must(os.ReadFile(file))(t)
			code.Write(source)
		}
	}
	n := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, found := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			n++
			message := strings.TrimSuffix(found[1], "...")
			check.That(t, strings.Contains(code.String(), `"`+message), "got the message %q in the documentation, which nothing logs", message)
		}
	}
	check.Equal(t, n, 12, "messages")
}

func TestTheDocumentationListsTheReasons(t *testing.T) {
	page := check.Must(os.ReadFile("../../docs/options.md"))(t)
	_, table, _ := strings.Cut(string(page), "\n| reason | the request was refused because | `Retry-After` |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented, want []string
	for _, found := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\| (yes|no) \\|$").FindAllStringSubmatch(table, -1) {
		documented = append(documented, found[1]+" "+found[2])
	}
	for why := range limit.Reasons {
		if why != limit.None {
			want = append(want, why.String()+" "+map[bool]string{true: "yes", false: "no"}[why.Waits()])
		}
	}
	slices.Sort(documented)
	slices.Sort(want)
	check.Slices(t, documented, want, "the reasons in the documentation")
}

// Flags are explained by --help.
func TestTheDocumentationNamesEveryCommand(t *testing.T) {
	var pages strings.Builder
	for _, name := range []string{"getting-started", "tuning", "refused", "logs-and-metrics"} {
		pages.Write(check.Must(os.ReadFile("../../docs/" + name + ".md"))(t))
	}
	all := new(cobra.Command)
	caddycmd.Commands()["throttle"].CobraFunc(all)
	for _, command := range all.Commands() {
		check.That(t, strings.Contains(pages.String(), "caddy throttle "+command.Name()), "got nothing about caddy throttle %s", command.Name())
	}
}

// The page about logs names every field of the commands' JSON.
func TestTheDocumentationHasEveryFieldOfTheJSON(t *testing.T) {
	page := check.Must(os.ReadFile("../../docs/logs-and-metrics.md"))(t)
	_, text, _ := strings.Cut(string(page), "\n## JSON\n")
	recommended, replayed, _ := strings.Cut(text, "A zone of `replay`")
	for _, test := range []struct {
		name, text string
		of         any
	}{
		{"recommend", recommended, tune.Recommendation{}},
		{"replay", recommended + replayed, tune.Report{}},
	} {
		names := jsonNames(reflect.TypeOf(test.of))
		check.That(t, len(names) >= 10, "%s: got the fields %v, want more", test.name, names)
		for _, name := range names {
			check.That(t, strings.Contains(test.text, "`"+name+"`"), "%s: got nothing about the field %q", test.name, name)
		}
	}
}

// jsonNames returns the names of all fields in the JSON of a type.
func jsonNames(of reflect.Type) (names []string) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice:
		return jsonNames(of.Elem())
	case reflect.Struct:
		for i := range of.NumField() {
			field := of.Field(i)
			if !field.IsExported() && !field.Anonymous {
				continue
			}
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
				names = append(names, name)
			}
			names = append(names, jsonNames(field.Type)...)
		}
	}
	return names
}

// The example of JSON has every field of a zone. That it is valid is tested with the
// documentation.
func TestTheExampleOfJSONHasEveryFieldOfAZone(t *testing.T) {
	example := check.Must(os.ReadFile("../../docs/example.json"))(t)
	names := jsonNames(reflect.TypeFor[limit.Zone]())
	check.That(t, len(names) >= 50, "got the fields %v, want more", names)
	for _, name := range names {
		check.That(t, strings.Contains(string(example), `"`+name+`":`), "got no %q in the example", name)
	}
}

// Manual pages are made from Markdown, which takes words in angle brackets for HTML.
func TestManualPagesKeepTheArguments(t *testing.T) {
	all := &cobra.Command{Use: "throttle"}
	caddycmd.Commands()["throttle"].CobraFunc(all)
	for _, command := range all.Commands() {
		var page bytes.Buffer
		check.OK(t, doc.GenMan(command, &doc.GenManHeader{Section: "8"}, &page))
		plain := strings.NewReplacer(`\fB`, "", `\fP`, "", `\-`, "-", `\[`, "[", `\]`, "]").Replace(page.String())
		if !strings.Contains(plain, command.UseLine()) {
			t.Errorf("got no %q in\n%s", command.UseLine(), plain[:min(len(plain), 400)])
		}
		text := command.Long + command.Flags().FlagUsages()
		check.That(t, !strings.Contains(text, "<"), "%s: got words in angle brackets in\n%s", command.Name(), text)
	}
}
