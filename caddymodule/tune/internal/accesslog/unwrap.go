package accesslog

import (
	"regexp"
	"strings"

	"github.com/tidwall/gjson"
)

var (
	// As docker compose logs, Kubernetes' container runtimes, and syslog or journalctl begin
	// a line.
	composePrefix = regexp.MustCompile(`^[\w.-]{1,80} +\| ?`)
	runtimePrefix = regexp.MustCompile(`^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] `)
	syslogPrefix  = regexp.MustCompile(`^(?:<\d{1,3}>)?(?:\d )?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)) [\w.:-]+ [\w./-]+(?:\[\d+\])?: `)
)

// unwrap returns the line that a log holds within another one: behind the prefix of a
// container runtime or of syslog, or as a text in JSON.
func unwrap(line string) string {
	if len(line) < 12 {
		return line
	}
	switch first, third := line[0], line[2]; {
	case strings.HasPrefix(line, `{"log":"`): // Docker's json-file
		return inner(line, "log")
	case first == '{' && (third == '_' || 'A' <= third && third <= 'Z'): // journalctl -o json
		return inner(line, "MESSAGE")
	case first == '{':
	case strings.Contains(line[:min(len(line), 90)], " | "):
		return line[len(composePrefix.FindString(line)):]
	case first == '<', 'A' <= first && first <= 'Z' && line[3] == ' ', line[4] == '-' && line[10] == 'T':
		if prefix := runtimePrefix.FindString(line); prefix != "" {
			return line[len(prefix):]
		}
		return line[len(syslogPrefix.FindString(line)):]
	}
	return line
}

// inner returns a text of a JSON object, or the line if there is none.
func inner(line, field string) string {
	if text := gjson.Get(line, field); text.Type == gjson.String {
		return strings.TrimRight(text.Str, "\r\n\t ")
	}
	return line
}
