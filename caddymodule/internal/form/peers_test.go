package form

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/internal/peertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A request is what readers are asked about.
type request struct {
	ContentType string `json:"type"`
	Query       []byte `json:"query"`
	Body        []byte `json:"body"`
}

// seen is what a reader takes a form, or a field of it, for: a text, a list, something
// else, or nothing.
type seen struct {
	Text  *[]byte  `json:"text"`
	List  []member `json:"list"`
	Other bool     `json:"other"`
}

type member struct {
	key   string
	value seen
}

func (m *member) UnmarshalJSON(data []byte) error {
	var key []byte
	err := json.Unmarshal(data, &[]any{&key, &m.value})
	m.key = string(key)
	return err
}

// at returns what is at the keys, of which # is any, and 0 any index.
func (s seen) at(keys ...string) (found []seen) {
	if len(keys) == 0 {
		return []seen{s}
	}
	for _, m := range s.List {
		letters, _ := appendLetters(nil, []byte(m.key))
		if m.key == keys[0] || keys[0] == "#" || keys[0] == "0" && isIndex(letters) {
			found = append(found, m.value.at(keys[1:]...)...)
		}
	}
	return found
}

// elements counts those of lists, of which JSON has only such with indexes.
func elements(lists []seen, inJSON bool) (n int) {
	for _, list := range lists {
		for _, m := range list.List {
			if _, err := strconv.Atoi(m.key); err == nil || !inJSON {
				n++
			}
		}
	}
	return n
}

// asked are fields and arrays, and the keys under which PHP and Rack have them.
var asked = struct {
	fields, arrays map[string][][]string
}{
	fields: map[string][][]string{
		"log": {{"log"}}, "p": {{"p"}}, "user[login]": {{"user", "login"}}, "user_login": {{"user_login"}},
		"line.items": {{"line_items"}, {"line.items"}}, "Rows[][Id]": {{"Rows", "0", "Id"}, {"rows", "0", "id"}},
	},
	arrays: map[string][][]string{
		"rows": {{"rows"}}, "line_items": {{"line_items"}, {"line.items"}}, "data.rows": {{"data", "rows"}}, "orders.#.lines": {{"orders", "#", "lines"}}, "": nil,
	},
}

// A judge holds readings to what PHP and Rack see.
type judge struct {
	plan   Plan
	fields map[string]Field
	arrays map[string]Array
	url    string
	client http.Client
	rack   *peertest.Peer
	sure   int // how many fields and arrays that are seen were sure
	seen   int
}

func newJudge(t *testing.T) *judge {
	t.Helper()
	j := &judge{fields: map[string]Field{}, arrays: map[string]Array{}, url: peertest.PHPServer(t, "testdata/php.php"), rack: peertest.Ruby(t, "testdata/rack.rb", "rack")}
	t.Logf("Rack %s", j.rack.Next(t))
	var err error
	for name := range asked.fields {
		if j.fields[name], err = j.plan.Field(name); err != nil {
			t.Fatal(err)
		}
	}
	for path := range asked.arrays {
		if j.arrays[path], err = j.plan.Array(path); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

// askPHP returns what PHP sees.
func (j *judge) askPHP(of *request) (trees []seen, err error) {
	r, err := http.NewRequest("POST", j.url, strings.NewReader(string(of.Body)))
	if err != nil {
		return nil, err
	}
	r.URL.RawQuery = string(of.Query)
	r.Header["Content-Type"] = nil
	if of.ContentType != "" {
		r.Header["Content-Type"] = []string{of.ContentType}
	}
	resp, err := j.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return trees, json.NewDecoder(resp.Body).Decode(&trees)
}

// judge asks PHP and Rack about some requests, all at once, and holds readings to them.
func (j *judge) judge(t *testing.T, requests []*request) {
	t.Helper()
	trees, errs := make([][]seen, len(requests)), make([]error, len(requests))
	var asking sync.WaitGroup
	for i, of := range requests {
		asking.Go(func() { trees[i], errs[i] = j.askPHP(of) })
	}
	var questions []string
	for _, of := range requests {
		question := check.Must(json.Marshal(of))(t)
		questions = append(questions, string(question))
	}
	answer := j.rack.Ask(t, strings.Join(questions, "\n"))
	asking.Wait()
	for i, of := range requests {
		var inRack []seen
		if i > 0 {
			answer = j.rack.Next(t)
		}
		check.OK(t, errors.Join(errs[i], json.Unmarshal([]byte(answer), &inRack)), "asking about %q", of)
		j.hold(t, of, append(trees[i], inRack...))
	}
}

// hold checks that what PHP and Rack see, the reading has or calls unclear.
func (j *judge) hold(t *testing.T, of *request, trees []seen) {
	t.Helper()
	r := j.plan.Read()
	r.Query(string(of.Query))
	r.Body(of.ContentType, "", int64(len(of.Body)), strings.NewReader(string(of.Body)))
	about := fmt.Sprintf("of %q?%q %q", of.ContentType, of.Query, of.Body)
	for name, f := range j.fields {
		value, state := r.Field(f)
		for i, tree := range trees {
			for _, keys := range asked.fields[name] {
				for _, s := range tree.at(keys...) {
					if j.seen++; state == One {
						j.sure++
					}
					if state == Absent || state == One && (s.Text == nil || string(*s.Text) != value) {
						t.Errorf("%s %s: got %q (%v), and reader %d sees %+v", name, about, value, state, i, s)
					}
				}
			}
		}
	}
	for path, a := range j.arrays {
		n, sure := r.Items(a)
		for i, tree := range trees {
			most, inJSON := 0, i%3 == 2
			if path == "" && inJSON {
				most = elements([]seen{tree}, true)
			}
			for _, keys := range asked.arrays[path] {
				most = max(most, elements(tree.at(keys...), inJSON))
			}
			if i%3 == 0 {
				most = 0 // in queries, arrays are not counted
			}
			if most > 0 {
				if j.seen++; sure {
					j.sure++
				}
			}
			if sure && n < most {
				t.Errorf("%s %s: got %d items, and reader %d sees %d", path, about, n, i, most)
			}
		}
	}
}

var someTypes = []string{
	formType, formType, formType, formType + "; charset=UTF-8", formType + ";charset=utf-16", formType + " x", formType + "\tx", formType + "\t; x", "Application/X-WWW-Form-URLEncoded",
	formType + ",text/plain", "text/plain, " + formType, "text/plain", "", "x" + formType, formType + "x",
	multiType, multiType, multiType, "multipart/form-data", "multipart/form-data;boundary=x", `multipart/form-data; boundary="x"`, "Multipart/Form-Data; Boundary=x", "multipart/form-data; charset=x; boundary=x", "multipart/form-data, boundary=x",
	"multipart/form-data; boundary=x; charset=x", "multipart/form-data; boundary=x,y", "multipart/form-data; boundary = x", "multipart/form-data; boundary=x ; x", `multipart/form-data; boundary="x`,
	"multipart/form-data; boundary=y; boundary=x", "multipart/form-data; boundary=x; boundary=y", "multipart/form-data; boundary=", "multipart/form-data x; boundary=x", "multipart/form-data\t; boundary=x",
	"multipart/mixed; boundary=x", "multipart/related; boundary=x", "multipart/x; boundary=x", "multipart/form-data; xboundary=x", "multipart; xboundary=x", "multipart/form-data; boundary='x'", "text/plain; boundary=x", "multipart/form-data; boundary=xx",
	jsonType, jsonType, jsonType + "; charset=utf-8", "application/vnd.api+json", "text/json", "application/octet-stream",
}

// pieces are what bodies are made of by chance.
var pieces = [][]string{
	{ // pairs
		"log", "log", "rows", "rows", "user", "line", "items", "p", "login", "data", "orders", "lines", "id", "0", "1", "[", "]", "[]", "[", "]", "[0]", "[a]", ".", "_", " ", "+", "%20", "%00", "%5B", "%5d", "%", "=", "=", "=a", "=b", "&", "&", "&", ";", "%0A", "\n", "\x00", "\xff", "a",
		"user[login]=", "rows[]=1&", "rows[1][id]=2&", "&log=admin&", "data[rows][]=1", "orders[0][lines][]=1&", "line_items[]=1&", "L", "O", "%4c", "%6", "é", "%C5%BF", "-", "$", ":", ",", "\"", "{", "}",
	},
	{ // parts
		"--x\r\n", "--x\r\n", "--x\r\n", "--x--\r\n", "--x", "--", "\r\n", "\r\n", "\n", "\r", "Content-Disposition: form-data; name=", "Content-Disposition: form-data; name=\"rows[]\"\r\n\r\n",
		"Content-Disposition: form-data; name=rows\r\n\r\n", "--x\r\nContent-Disposition: a; name=user[login]\r\n\r\nv\r\n", "content-disposition:", ";name=", "; filename=", "Content-ID: ", "rows", "user", "[login]", "[0]", "[]", "'", "\"", "\\", "log",
		";", "=", ":", " ", "\t", "\x00", "v", "A: b\r\n", "; filename*=utf-8''a", "; filename=\"a\"", "Content-Type: text/plain\r\n", "Content-Transfer-Encoding: 8bit\r\n", "%", "=?utf-8?B?bG9n?=", "\xff",
		"--x\r\nContent-Disposition: form-data; name=\"rows\"\r\n\r\nv\r\n", "--x\r\nContent-Disposition: form-data; name=\" user[login]\"\r\n\r\nw\r\n", "--x\r\nContent-Disposition: form-data; name=\"log\"\r\n\r\nw\r\n", "--x\r\nContent-Disposition: form-data; name=user.login\r\n\r\nw\r\n",
		"--x\r\nContent-Disposition: form-data; name=\"line.items\"\r\nA: b\r\n\r\n\r\r\n", "--x\r\nContent-Disposition: form-data; name=\"", "--x\r\nContent-Disposition: form-data; name=\"log",
		"\"; filename=\"", "\"\r\n\r\nv\r\n", "\r\n--x--", "\r\n--x--\r\n",
	},
	{ // JSON
		"{", "}", "[", "]", ",", ":", "\"", "\\", `"log"`, `"log":"a"`, `"user":{"login":`, `"rows":[1,2]`, `"data":{"rows":[`, `"orders":[{"lines":[1]}`, `"a"`, "1", "-0", "1.5", "1e2", "true", "null", " ", "\n", `\u006c`, `"\u006cog":`, `"p":`, `\ud83d\ude00`, `\ud83d`,
		`"line.items":[1,2,3]`, `"line_items":7`, `"0":`, `"user_login":"x"`, `{"log":"a","user":{"login":"b"}}`, `[{"id":1}]`, `"Rows":[{"Id":"x"}]`, `"rows":{"0":1,"1":2}`, "\ufeff", "\x00", "\xff", "/*", "*/", "é", `"log\u0000"`, "12345678901234567890",
	},
}

// any returns one by chance.
func any1[T any](random *rand.Rand, of []T) T { return of[random.IntN(len(of))] }

// chance makes a request of pieces.
func chance(random *rand.Rand) *request {
	r := &request{ContentType: any1(random, someTypes)}
	kind := random.IntN(len(pieces))
	if random.IntN(4) > 0 { // mostly what the type says
		switch {
		case strings.Contains(r.ContentType, "multipart"):
			kind = 1
		case strings.Contains(r.ContentType, "json"):
			kind = 2
		case strings.Contains(r.ContentType, "urlencoded"):
			kind = 0
		}
	}
	var body strings.Builder
	for range random.IntN(24) {
		body.WriteString(any1(random, pieces[kind]))
	}
	if kind == 1 && random.IntN(2) == 0 {
		body.WriteString("\r\n--x--\r\n")
	}
	r.Body = []byte(body.String())
	if random.IntN(4) == 0 {
		var query strings.Builder
		for range random.IntN(12) {
			query.WriteString(any1(random, pieces[0]))
		}
		r.Query = []byte(strings.NewReplacer("\x00", "", "\n", "", " ", "", "\xff", "", "é", "", `"`, "").Replace(query.String()))
	}
	return r
}

// well makes a request that is well formed but for one change in most cases.
func well(random *rand.Rand) *request {
	names := []string{
		"log", "log[]", "log[a]", "log[0]", " log", "log ", "l.og", "LOG", "user[login]", "user.login", "user_login", "user[ login]", "user[login][]", "user[login", "user]login", "[user]login", "[log]", "log]", "[[log]]", "user[0]login", "user[][login]", "user[0][login]", "user[login]x",
		"log[0", "log[0[a]", "user[0[login]", "user.0.login", "user[0]]login", "rows][0][id]", "rows[0]id]", "rows]id", "Rows[0][Id", "Rows.0.Id", "Rows[0].Id", "Rows 0[Id]", "Rows[][][Id]", "rows[0][[id]", "rows[;0][id]", "rows[0;][id]",
		"rows", "rows[]", "rows[0]", "rows[a]", "rows[0][id]", "rows[1][id]", "rows[][id]", "Rows[0][Id]", "rows[ ]", "rows[a]b", "data[rows][]", "data.rows[]", "orders[0][lines][]", "orders[][lines][]", "orders[a][lines][b]", "line_items", "line_items[]", "line.items[]", "line items[]", "line[items", "line[items][]", "p", "P", "p[]", "x", "y[z]", "a[b[c]d]", "", "log\x00x", "rows\x00[]", "lo\x00g", "log\xff", "\xfflog",
	}
	values := []string{"", "a", "b", "admin", "a b", "a=b", "\xff", "a\x00", "é", "1", "{}", "--x", "\r\n--y", "\n", "a;b", "a&b"}
	var text strings.Builder
	r := &request{}
	switch n := 1 + random.IntN(6); random.IntN(3) {
	case 0:
		r.ContentType = any1(random, someTypes[:4])
		for range n {
			for i, s := range []string{any1(random, names), any1(random, values)} {
				for _, c := range []byte(s) {
					if c <= ' ' || c >= 0x7f || strings.IndexByte("&=%+", c) >= 0 || random.IntN(9) == 0 {
						fmt.Fprintf(&text, "%%%02x", c)
					} else {
						text.WriteByte(c)
					}
				}
				text.WriteString([]string{"=", "&"}[i])
			}
		}
	case 1:
		r.ContentType = any1(random, []string{multiType, multiType, `multipart/form-data; boundary="x"`, "multipart/form-data; charset=utf-8; boundary=x"})
		for range n {
			extra := any1(random, []string{"", "", "", "; filename=\"a.png\"", "; filename=a.png", "; filename*=utf-8''a", "; filename=\"\"", "; filename=\"a\\b\"", "; filename=\"a;b\"", "; filename=\"a'b\"", "; filename=\"a\"; filename*=UTF-8''a%20b", "\r\nContent-Type: text/plain", "\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Transfer-Encoding: binary", "\r\nContent-Length: 3", "; x=y", "\r\nX: y", "\r\n X: y", "\r\nContent-Type: text/plain; charset=utf-16"})
			quote := any1(random, []string{`"`, `"`, `"`, "", "'"})
			fmt.Fprintf(&text, "--x\r\nContent-Disposition: form-data; name=%s%s%s%s\r\n\r\n%s\r\n", quote, any1(random, names), quote, extra, any1(random, values))
		}
		text.WriteString("--x--\r\n")
	default:
		r.ContentType = any1(random, []string{jsonType, jsonType, jsonType + "; charset=utf-8", "text/plain", "", formType, "application/octet-stream"})
		jsonValue(&text, random, 4, names, values)
	}
	body := []byte(text.String())
	if random.IntN(2) == 0 && len(body) > 0 { // one change
		at := random.IntN(len(body))
		switch random.IntN(4) {
		case 0:
			body[at] = any1(random, []byte("\x00\r\n\t \"\\';&=[]{}%-:,x0\xff"))
		case 1:
			body = append(body[:at], body[at+1:]...)
		case 2:
			body = append(body[:at], append([]byte(any1(random, []string{"\r\n", "\x00", "\"", ";", "&", "%", "[", "]", "\\", " ", "--x", "\r\n--x\r\n", ",", "{"})), body[at:]...)...)
		default:
			body = append(body, body[at:]...)
		}
	}
	r.Body = body
	return r
}

func jsonValue(text *strings.Builder, random *rand.Rand, deep int, names, values []string) {
	quoted := func(s string) {
		text.WriteByte('"')
		for _, c := range s {
			switch {
			case c < ' ' || c == '"' || c == '\\' || c == '\ufffd' || random.IntN(9) == 0:
				fmt.Fprintf(text, `\u%04x`, c)
			default:
				text.WriteRune(c)
			}
		}
		text.WriteByte('"')
	}
	if deep == 0 || deep < 4 && random.IntN(3) == 0 {
		if random.IntN(2) == 0 {
			quoted(any1(random, values))
		} else {
			text.WriteString(any1(random, []string{"1", "0", "-0", "-7", "1.0", "1e3", "true", "null", "123456789012345678901"}))
		}
		return
	}
	n := random.IntN(4)
	if random.IntN(3) == 0 {
		text.WriteByte('[')
		for i := range n {
			if i > 0 {
				text.WriteString(", ")
			}
			jsonValue(text, random, deep-1, names, values)
		}
		text.WriteByte(']')
		return
	}
	text.WriteByte('{')
	for i := range n {
		if i > 0 {
			text.WriteByte(',')
		}
		quoted(any1(random, append(names, "user", "login", "data", "orders", "lines", "0", "1", "Rows", "Id", "id")))
		text.WriteByte(':')
		jsonValue(text, random, deep-1, names, values)
	}
	text.WriteByte('}')
}

// TestPeers holds what is read of odd requests to what PHP and Rack see. With
// TEST_LONG=<duration>, it goes on with others for so long.
func TestPeers(t *testing.T) {
	j := newJudge(t)
	seed := uint64(1)
	var until time.Time
	if long, err := time.ParseDuration(os.Getenv("TEST_LONG")); err == nil {
		seed, until = rand.Uint64(), time.Now().Add(long)
	} else if os.Getenv("TEST_LONG") != "" {
		seed, until = rand.Uint64(), time.Now().Add(time.Minute)
	}
	random := rand.New(rand.NewPCG(seed, 2))
	n := 0
	for ; (n < 2000 || time.Now().Before(until)) && !t.Failed(); n += 32 {
		var requests []*request
		for range 16 {
			requests = append(requests, chance(random), well(random))
		}
		j.judge(t, requests)
	}
	t.Logf("%d requests from seed %d: of %d values and arrays that PHP and Rack see, %d were sure", n, seed, j.seen, j.sure)
}
