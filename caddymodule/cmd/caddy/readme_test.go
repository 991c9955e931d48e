package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// A snippet is configuration in the README, and the text around it that makes it
// a whole Caddyfile.
type snippet struct{ text, before, after string }

const global = "{\nthrottle {\nplan partner 600 10/s\nzone global {\nlimit 7 1/s\n}\n}\n}\n"

func ofSite(text string) snippet {
	return snippet{text, global + "http://example.com {\nroot * /srv\n@name path /x\n", "\n}\n"}
}

func ofThrottle(text string) snippet {
	return ofSite("throttle {\n" + text + "\n}")
}

func ofZone(text string) snippet {
	given := func(line string) bool { return regexp.MustCompile(`(?m)^` + line).MatchString(text) }
	needed := ""
	if !given("limit ") && !given("capacity ") {
		needed = "capacity 60\n"
	}
	if !given("limit ") && !given("leak ") {
		needed += "leak 60/m\n"
	}
	if given(`key .*\broute\b`) && !given("route ") {
		needed += "route some /some\n"
	}
	return ofThrottle("zone some {\n" + needed + text + "\n}")
}

func ofGlobal(text string) snippet {
	return snippet{text, "{\nthrottle {\n", "\n}\n}\n"}
}

func (s snippet) adapts(t *testing.T) {
	t.Helper()
	whole := s.before + s.text + s.after
	if _, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(whole), map[string]any{"filename": "../../../README.md"}); err != nil {
		t.Errorf("got %v for\n%s", err, whole)
	}
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var fence = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")

func TestEveryCaddyfileInTheReadmeAdapts(t *testing.T) {
	n := 0
	for _, found := range fence.FindAllStringSubmatch(readme(t), -1) {
		text := strings.TrimSpace(found[2])
		first, _, _ := strings.Cut(text, " ")
		whole := ofSite(text)
		switch {
		case strings.HasPrefix(text, "throttle [<matcher>]"):
			for _, form := range strings.Split("\n"+text, "\nthrottle")[1:] {
				ofSite(filled("throttle" + form)).adapts(t)
				n++
			}
			continue
		case strings.HasPrefix(text, "rate_limit {"): // and throttle beside it
			whole = ofSite(rightColumn(text))
		case found[1] != "caddyfile":
			continue
		case first == "zone":
			whole = ofThrottle(text)
		case first == "exempt":
			whole = ofZone(text)
		case first != "throttle":
			whole = snippet{text: text}
		}
		whole.adapts(t)
		n++
	}
	if n < 15 {
		t.Errorf("got %d Caddyfiles, want more", n)
	}
}

func TestEveryCaddyfileInTheReadmeIsFormattedAsCaddyFmtDoes(t *testing.T) {
	for _, found := range fence.FindAllStringSubmatch(readme(t), -1) {
		if text := found[2]; found[1] == "caddyfile" {
			if formatted := string(caddyfile.Format([]byte(text))); formatted != text {
				t.Errorf("got\n%s\nwant\n%s", text, formatted)
			}
		}
	}
}

// rightColumn returns the second of two columns.
func rightColumn(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line[min(39, len(line)):]))
	}
	return strings.Join(lines, "\n")
}

// filled replaces everything in angle brackets by examples.
func filled(syntax string) string {
	syntax = regexp.MustCompile(` *#.*`).ReplaceAllString(syntax, "")
	// The first of alternatives.
	syntax = strings.NewReplacer(
		"<request matchers>|@<name>|static_files [<root>]", "path /x", "<request matchers>|@<name>", "@name",
		"<request matchers>|static_files [<root>]", "path /x", "<n>|<placeholder>|body_items [<path>]|body_bytes <unit>", "body_bytes 1KiB",
		"seconds [<workers>]|bytes <unit>|header <Name>|status <code|class>... <n> [after]", "status 401 4xx 1 after",
		"<plan>|<capacity> <leak>|unlimited|deny", "5 1/s", "{ <request matchers> }", "{\npath /x\n}",
		"<file>|{ title <text>; accent <colour>; text <text> }", "<file>",
		"zone <name>\n", "zone global\n", "zone <name> { ... }", "zone some {\nlimit 5 1/s\n}", "zone <name>", "zone some",
		"{ ... }", "{\nlimit 5 1/s\n}", "store memory { max_buckets <n> }", "store memory {\nmax_buckets 1000\n}",
		"status <code|class>...", "status 401 4xx", "[<matcher>]", "", "<key>...", "client_ip", "<option>", "shadow", "<part>...", "203.0.113.7",
		"<cookie-glob> [<duration>]", "sid 30d", "<source>...", "client_ip", "<path>...", "/x", "[<duration>...]", "10m", "empty|fit|<duration>", "30s", "[<undelayed>]", "1",
	).Replace(syntax)
	syntax = strings.NewReplacer(
		"<capacity>", "5", "<leak>", "1/s", "<n>/<s|m|h|d>", "1/s", "<n>", "5", "<bits>", "24", "<size>", "64KiB", "<duration>", "30s",
		"<percent of keys>", "10", "<percent>", "10", "<code>", "503", "<file>", "docs/too-many-requests.html",
		"<name>", "some", "<text>", `"Slow down."`, "<field>", "log", "<string>", "v1", "[everywhere]", "everywhere",
	).Replace(syntax)
	syntax = strings.ReplaceAll(syntax, "throttle  ", "throttle ")
	syntax = strings.ReplaceAll(syntax, "throttle <zone>\n", "throttle global\n")
	if strings.TrimSpace(syntax) == "throttle  <zone>" || strings.TrimSpace(syntax) == "throttle <zone>" {
		return "throttle global"
	}
	syntax = strings.ReplaceAll(syntax, "<zone>", "line")
	return regexp.MustCompile(`([a-z_]+)\|[a-z_|]+`).ReplaceAllString(syntax, "$1")
}

var (
	span = regexp.MustCompile("`([^`]+)`")
)

// needs are the options that another option requires.
var needs = map[string]string{
	"max_body": "cost body_items", "unread_body_cost": "cost body_items", "debt": "settle seconds", "max_wait": "delay", "request_buffer": "in_flight 5", "max_waiting": "delay",
	"trust_devices": "key form log", "route": "key route", "unlisted_key": "override 203.0.113.7 unlimited",
}

func TestEveryOptionInATableOfTheReadmeAdapts(t *testing.T) {
	header, n := "", 0
	zone := true // the first table of options is that of a zone
	for line := range strings.Lines(readme(t)) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "|") {
			if header == "| option | default | |" {
				zone = false
			}
			header = ""
			continue
		}
		if header == "" {
			header = line
			continue
		}
		if strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
		spans := func(cell int) (texts []string) {
			for _, found := range span.FindAllStringSubmatch(strings.ReplaceAll(cells[cell], "\x00", "|"), -1) {
				texts = append(texts, found[1])
			}
			return texts
		}
		switch subject := strings.Trim(strings.SplitN(header, "|", 3)[1], " `"); {
		case header == "| option | default | |":
			for _, text := range spans(0) {
				n++
				whole := ofGlobal
				if zone {
					whole = ofZone
				}
				option, _, _ := strings.Cut(text, " ")
				text = filled(text)
				switch {
				case strings.HasPrefix(text, "store redis"), strings.HasPrefix(text, "store postgres"):
					continue // in tables of their own
				case zone && needs[option] != "":
					text = needs[option] + "\n" + text
				}
				whole(text).adapts(t)
			}
		case strings.HasPrefix(subject, "store "):
			for _, text := range spans(0) {
				n++
				store := "store redis redis://10.0.0.7"
				if strings.Contains(subject, "postgres") {
					store = "store postgres postgres://10.0.0.7/throttle"
				}
				if text == "<url>" {
					ofGlobal(store).adapts(t)
					continue
				}
				option, _, _ := strings.Cut(text, " ")
				if option != "logged" {
					option += " x"
				}
				ofGlobal(store + " {\n" + option + "\n}").adapts(t)
			}
		case subject == "retry_after" || subject == "on_store_error":
			for _, text := range spans(0) {
				n++
				ofZone(subject + " " + text).adapts(t)
			}
		case subject == "source":
			for _, text := range spans(0) {
				n++
				ofZone("key " + filled(text)).adapts(t)
			}
		case strings.HasSuffix(header, "| a request really costs |"):
			for _, text := range spans(0) {
				n++
				ofZone(text).adapts(t)
			}
		case strings.HasSuffix(header, "| here |"):
			if config := configIn(spans(1)); config != "" {
				n++
				if strings.HasPrefix(config, "throttle") {
					ofSite(config).adapts(t)
				} else {
					ofZone(config).adapts(t)
				}
			}
		}
	}
	if n < 70 {
		t.Errorf("got %d cells with options, want more", n)
	}
}

// configIn returns the options of a zone among the code of a cell.
func configIn(spans []string) string {
	var options []string
	for _, text := range spans {
		switch word, _, more := strings.Cut(text, " "); {
		case strings.Contains(text, "..."), strings.HasPrefix(text, "{"):
		case strings.HasPrefix(word, "path") || word == "method" || word == "respond":
		case more || word == "shadow" || word == "delay":
			options = append(options, text)
		}
	}
	return strings.Join(options, "\n")
}
