package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// filled replaces everything in angle brackets by examples.
func filled(syntax string) string {
	// The first of alternatives.
	syntax = strings.NewReplacer(
		"<request matchers>|@<name>|static_files [<root>]", "path /x", "<request matchers>|@<name>", "@name",
		"<request matchers>|static_files [<root>]", "path /x", "<n>|<placeholder>|body_items [<path>]|body_bytes <unit>", "body_bytes 1KiB",
		"seconds|bytes <unit>|header <Name>|status <code|class>... <n>", "status 401 4xx 1",
		"status <code|class>...|header <Field> <value>|cookie <glob> { status <code|class>...; header <Field> <value> }", "cookie sid",
		"<plan>|<capacity> <leak>|unlimited|deny", "5 1/s", "{ <request matchers> }", "{\npath /x\n}",
		"<file>|{ title <text>; accent <colour>; text <text> }", "too-many-requests.html",
		"zone <name> { ... }", "zone some {\nlimit 5 1/s\n}", "store memory { max_buckets <n> }", "store memory {\nmax_buckets 1000\n}",
		"store memory { snapshot <file>|off }", "store memory {\nsnapshot off\n}", "store memory { snapshot_interval <duration> }", "store memory {\nsnapshot_interval 1m\n}",
		"status <code|class>...", "status 401 4xx", "[<matcher>]", "", "[<key>...]", "client_ip", "<key>...", "client_ip", "<part>...", "203.0.113.7",
		"member issued <cookie-glob>...|member told <Response-Header> <cookie-glob>|member|crawler <request matchers>", "member issued sid",
		"<cookie-glob> [<duration>]", "sid 30d", "[<source>...]", "client_ip", "<source>...", "client_ip", "<path>...", "/x", "[<duration>...]", "10m", "empty|fit|<duration>", "30s", "[<undelayed>]", "1",
		"{ ... }", "{\nlimit 5 1/s\n}",
	).Replace(syntax)
	syntax = strings.NewReplacer(
		"[as <name>]", "as some", "all|<n>/<s|m|h|d>|off", "10/s", "<capacity>", "5", "<leak>", "1/s", "<n>/<s|m|h|d>", "1/s", "<n>", "5", "<bits>", "24", "<size>", "64KiB", "<duration>", "30s",
		"<percent of keys>", "10", "<cost>", "2", "<percent>", "10", "<code>", "503", "<name>", "some", "<text>", `"Slow down."`,
		"<secret>", strings.Repeat("s", 32), "<field>", "log", "<string>", "v1", "[everywhere]", "everywhere",
	).Replace(syntax)
	return regexp.MustCompile(`([a-z_]+)\|[a-z_|]+`).ReplaceAllString(syntax, "$1")
}

// needs are the options that another option requires.
var needs = map[string]string{
	"key": "override 203.0.113.0/24 unlimited", "read_body": "cost body_items", "trust_devices": "key field log\nrefund cookie sid", "route": "key route",
}

// ofZone returns a Caddyfile with these options in a zone.
func ofZone(options string) string {
	word, _, _ := strings.Cut(options, " ")
	if need := needs[word]; need != "" && (word != "key" || strings.Contains(options, "unlisted")) {
		options = need + "\n" + options
	}
	return wholeCaddyfile("throttle {\n" + aroundZoneOptions(options) + options + "\n}\n}\n")
}

// ofGlobal returns a Caddyfile with these global options.
func ofGlobal(options string) string { return "{\nthrottle {\n" + options + "\n}\n}\n" }

// ofStore returns a Caddyfile with options of a shared store, or with its URL.
func ofStore(subject string, options []string) string {
	store := "store redis rediss://10.0.0.7"
	if strings.Contains(subject, "postgres") {
		store = "store postgres postgres://10.0.0.7/throttle"
	}
	given := " {\n"
	for _, option := range options {
		switch name, _, _ := strings.Cut(option, " "); {
		case name == "<url>":
			return ofGlobal(store)
		case name == "logged":
			given += name + "\n"
		case strings.HasSuffix(option, " <file>"):
			given += name + " /run/some.pem\n"
		default:
			given += name + " x\n"
		}
	}
	return ofGlobal(store + given + "}")
}

// A row is a row of a table.
type row struct {
	line   int
	header string // the first line of the table
	cells  []string
}

func (p *page) rows() (rows []row) {
	header := ""
	for n, line := range p.prose {
		switch {
		case !strings.HasPrefix(line, "|"):
			header = ""
		case header == "":
			header = line
		case !strings.HasPrefix(line, "|---"):
			rows = append(rows, row{n, header, strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")})
		}
	}
	return rows
}

// code returns the spans of code in a cell.
func (r row) code(cell int) (spans []string) {
	for _, span := range codeSpan.FindAllString(strings.ReplaceAll(r.cells[cell], "\x00", "|"), -1) {
		spans = append(spans, strings.Trim(span, "`"))
	}
	return spans
}

// configurations returns the Caddyfiles that the code in a row stands for.
func (r row) configurations() (configs []string) {
	subject := strings.Trim(strings.SplitN(r.header, "|", 3)[1], " `")
	switch {
	case r.header == "| option | default | |":
		for _, text := range r.code(0) {
			if !strings.HasPrefix(text, "store redis") && !strings.HasPrefix(text, "store postgres") { // in tables of their own
				configs = append(configs, ofGlobal(filled(text)))
			}
		}
	case strings.HasPrefix(subject, "store "):
		configs = append(configs, ofStore(subject, r.code(0)))
	case subject == "on_store_error" || subject == "missing_key" || subject == "cost":
		for _, text := range r.code(0) {
			configs = append(configs, ofZone(subject+" "+text))
		}
	case subject == "retry_after":
		for _, text := range r.code(0) {
			configs = append(configs, ofZone("refusal retry_after "+text))
		}
	case subject == "source":
		for _, text := range r.code(0) {
			configs = append(configs, ofZone("key "+filled(text)))
		}
	case strings.HasSuffix(r.header, "| a request really costs |"):
		for _, text := range r.code(0) {
			configs = append(configs, ofZone(text))
		}
	case strings.HasSuffix(r.header, "| here |"):
		if config := configIn(r.code(1)); strings.HasPrefix(config, "throttle") || strings.HasPrefix(config, "in_flight") {
			configs = append(configs, wholeCaddyfile(config+"\n"))
		} else if strings.HasPrefix(config, "store") {
			configs = append(configs, ofGlobal(config+" redis://10.0.0.7"))
		} else if config != "" {
			configs = append(configs, ofZone(config))
		}
	}
	return configs
}

// configIn returns the first configuration among the code of a cell.
func configIn(spans []string) string {
	var options []string
	for _, text := range spans {
		switch word, _, more := strings.Cut(text, " "); {
		case strings.Contains(text, "..."), strings.Contains(text, "<"), strings.HasPrefix(text, "{"):
		case strings.HasPrefix(word, "path") || word == "method" || word == "respond":
		case word == "store":
			return text
		case more || word == "shadow" || word == "delay":
			options = append(options, text)
		}
	}
	return strings.Join(options, "\n")
}

func TestEveryOptionInATableIsValid(t *testing.T) {
	m := newMachine(t)
	n := 0
	for _, p := range pages(t) {
		for _, r := range p.rows() {
			for _, config := range r.configurations() {
				n++
				err := m.validate("caddyfile", config)
				check.That(t, err == nil, "%s:%d: got %v, want a valid configuration:\n%s", p.name, r.line, err, config)
			}
		}
	}
	check.That(t, n >= 50, "got %d options in tables, want more", n)
}

// A detail may stand behind an option.
var detail = regexp.MustCompile(`\[([a-z_0-9]+(?: [^\]]*)?)\]`)

var syntaxLine = regexp.MustCompile("^- Syntax: `(.*)`$")

func TestEverySyntaxOfTheZoneReferenceIsValid(t *testing.T) {
	m := newMachine(t)
	n := 0
	for _, p := range pages(t) {
		for line, text := range p.prose {
			found := syntaxLine.FindStringSubmatch(text)
			if found == nil {
				continue
			}
			n++
			// A line with all that may stand on it. Its block is in the examples.
			syntax, _, _ := strings.Cut(found[1], " { share")
			syntax, _, _ = strings.Cut(syntax, " { page")
			config := ofZone(filled(detail.ReplaceAllString(strings.ReplaceAll(syntax, " [pass off]", ""), "$1")))
			err := m.validate("caddyfile", config)
			check.That(t, err == nil, "%s:%d: got %v, want a valid configuration:\n%s", p.name, line, err, config)
		}
	}
	check.That(t, n >= 18, "got %d options in the zone reference, want more", n)
}

var blanks = regexp.MustCompile(`(?m) +$`)

// TestEveryFormOfTheDirectiveIsValid as the zone reference writes them.
func TestEveryFormOfTheDirectiveIsValid(t *testing.T) {
	m := newMachine(t)
	n := 0
	for _, p := range pages(t) {
		for _, f := range p.fences {
			if !strings.HasPrefix(f.text, "throttle [<matcher>]") {
				continue
			}
			for _, form := range strings.Split("\n"+f.text, "\nthrottle")[1:] {
				n++
				text := blanks.ReplaceAllString("throttle"+comment.ReplaceAllString(form, ""), "")
				text = strings.NewReplacer("[<matcher>] <zone>\n", "global\n", "[<matcher>] <zone>", "line", "<option>", "shadow", "zone <name>\n", "zone global\n").Replace(strings.TrimSpace(text) + "\n")
				check.NoError(t, m.validate("caddyfile", wholeCaddyfile(filled(text))), "%s:%d:\n%s", p.name, f.line, text)
			}
		}
	}
	check.Equal(t, n, 5, "forms")
}

// TestEveryExampleInGoIsATest of the library, word for word.
func TestEveryExampleInGoIsATest(t *testing.T) {
	files := check.Must(filepath.Glob(filepath.Join(root, "leakybucket", "*", "*_test.go")))(t)
	more := check.Must(filepath.Glob(filepath.Join(root, "leakybucket", "*_test.go")))(t)
	var tests strings.Builder
	for _, file := range append(files, more...) {
		text := check.Must(os.ReadFile(file))(t)
		tests.Write(text)
	}
	n := 0
	for p, f := range fencesOf(t, "go") {
		if n++; !strings.HasPrefix(f.text, "func Example") || !strings.Contains(tests.String(), "\n"+f.text) {
			t.Errorf("%s:%d: got an example that is no test of the library:\n%s", p.name, f.line, f.text)
		}
	}
	check.That(t, n >= 5, "got %d examples in Go, want more", n)
}
