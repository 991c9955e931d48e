package body

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
	"github.com/caddy-throttle/caddy-throttle/internal/peertest"
)

// A peer reads forms as applications do.
type peer func(t *testing.T, form *Body) peerValue

// A peerValue is what a peer takes a form or field for: an error, nothing, a
// text, or a list.
type peerValue struct {
	Error bool                 `json:"error"`
	Text  *[]byte              `json:"text"`
	List  []peerPair           `json:"list"`
	index map[string]peerValue // made from the list
}

type peerPair struct {
	key   string
	value peerValue
}

func (p *peerPair) UnmarshalJSON(data []byte) error {
	var key []byte
	err := json.Unmarshal(data, &[]any{&key, &p.value})
	p.key = string(key)
	return err
}

// at returns what is at the keys.
func (v peerValue) at(keys ...string) peerValue {
	for _, key := range keys {
		if v.index == nil {
			v.index = make(map[string]peerValue)
			for _, pair := range v.List {
				v.index[pair.key] = pair.value
			}
		}
		v = v.index[key]
	}
	return v
}

// realPHP starts PHP's own server.
func realPHP(t *testing.T) peer {
	t.Helper()
	url := peertest.PHPServer(t, "testdata/form.php")
	return func(t *testing.T, form *Body) (v peerValue) {
		t.Helper()
		req, err := http.NewRequest("POST", url, strings.NewReader(string(form.Data)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header["Content-Type"] = nil
		if form.ContentType != "" {
			req.Header.Set("Content-Type", form.ContentType)
		}
		if form.ContentEncoding != "" {
			req.Header.Set("Content-Encoding", form.ContentEncoding)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || resp.StatusCode != 200 {
			t.Fatalf("PHP answers %q with %v, %v", form.Data, resp.Status, err)
		}
		return v
	}
}

// realRack starts Ruby with Rack.
func realRack(t *testing.T) peer {
	t.Helper()
	rack := peertest.Ruby(t, "testdata/rack.rb", "rack")
	t.Logf("Rack %s", rack.Next(t))
	return func(t *testing.T, form *Body) (v peerValue) {
		t.Helper()
		question, err := json.Marshal(map[string]any{"type": form.ContentType, "encoding": form.ContentEncoding, "data": form.Data})
		if err != nil {
			t.Fatal(err)
		}
		answer := rack.Ask(t, string(question))
		if err := json.Unmarshal([]byte(answer), &v); err != nil {
			t.Fatalf("Rack answers %q with %q, %v", form.Data, answer, err)
		}
		return v
	}
}

// peersNames are fields as they are asked for here, and where PHP and Rack have
// them.
var peersNames = []struct {
	name, path string
	php, rack  []string
}{
	{"rows", "rows", []string{"rows"}, []string{"rows"}},
	{"line_items", "line_items", []string{"line_items"}, []string{"line_items"}},
	{"line.items", `line\.items`, []string{"line_items"}, []string{"line.items"}},
	{"user[rows]", "user[rows]", []string{"user", "rows"}, []string{"user", "rows"}},
	{"user[rows]", "user.rows", []string{"user", "rows"}, []string{"user", "rows"}},
	{"user[0]", "user.0", []string{"user", "0"}, []string{"user", "0"}},
}

// holdTo checks that a form is never taken for less than PHP or Rack take it
// for, and that no account is named that one of them does not see.
func holdTo(t *testing.T, form *Body, inPHP, inRack peerValue) {
	t.Helper()
	for _, asked := range peersNames {
		toPHP, toRack := inPHP.at(asked.php...), inRack.at(asked.rack...)
		path := mustPath(t, asked.path)
		n, understood := form.Items(path)
		if want := max(len(toPHP.List), len(toRack.List)); understood && n < want {
			t.Errorf("%s in %q as %s: got %d items, want %d (PHP %d, Rack %d)", asked.path, form.Data, form.ContentType, n, want, len(toPHP.List), len(toRack.List))
		}
		got, found := form.Field(asked.name, fold.Plain)
		for peer, value := range map[string]peerValue{"PHP": toPHP, "Rack": toRack} {
			folded := ""
			if value.Text != nil {
				folded = strings.ToLower(strings.TrimSpace(strings.Trim(string(*value.Text), blanks+"\x00")))
			}
			switch {
			case found && folded != "" && folded != got, found && len(value.List) > 0:
				t.Errorf("%s in %q as %s: got %q, and %s sees %q and %d elements", asked.name, form.Data, form.ContentType, got, peer, folded, len(value.List))
			}
		}
	}
}

// TestFormsAreReadAsRealPHPAndRackReadThem sends odd forms to both.
func TestFormsAreReadAsRealPHPAndRackReadThem(t *testing.T) {
	askPHP, askRack := realPHP(t), realRack(t)
	ask := func(t *testing.T, form *Body) (peerValue, peerValue) {
		inPHP, inRack := askPHP(t, form), askRack(t, form)
		holdTo(t, form, inPHP, inRack)
		return inPHP, inRack
	}

	// Spellings of one field that only the name tells apart. Given once, a plain one is
	// found if PHP or Rack finds it; given five times, none is cheaper.
	names := []string{
		"rows", " rows", "+rows", "%20rows", "rows%00", "rows%00x", "rows[]", "rows%5B%5D", "+rows[]", "rows[ ]", "rows[0]", "rows[a]b", "rows[a", "rows[",
		"rows]", "[rows]", "[[rows", "]rows", "rows[][a]", "rows[]a", "rows[][]", "rows[[]", "rows[[a]]", "rows%0A[]", "rows[a]%0A[]b", "%09rows", "rows%FF",
		"line_items", "line.items", "line+items", "line%20items", "line[items", "line[items[]", ".line.items", "line.items[]", "line+items[]", "line%5Bitems", "line.items%00.x",
		"user[rows]", "user[rows][]", "user[]rows", "user[rows", "user]rows", "user[[rows]]", "user[rows]]", " user[rows]", "user[rows][a][b]", "user[][rows]", "user[%00rows]",
		"user", "user[0]", "user[0][]", "user[]", "user[ 0]", "%", "%zz", "", "=", "[", "]", "[]", "rows;x", "x;rows", "rows=",
	}
	types := []string{
		formType, formType + "; charset=UTF-8", formType + ";charset=utf-16", formType + " x", formType + "\tx", formType + "\t; x", "Application/X-WWW-Form-URLEncoded",
		formType + ",text/plain", "text/plain, " + formType, "text/plain", "", "multipart/form-data", "x" + formType, formType + "x",
	}
	for _, name := range names {
		for _, contentType := range types[:2] {
			for _, repeated := range []int{1, 5} {
				form := &Body{ContentType: contentType, Data: []byte("x=1&" + strings.Repeat(name+"=Admin&", repeated))}
				inPHP, inRack := ask(t, form)
				for _, asked := range peersNames {
					seen := inPHP.at(asked.php...).Text != nil || inRack.at(asked.rack...).Text != nil
					array := inPHP.at(asked.php...).List != nil || inRack.at(asked.rack...).List != nil
					decoded := string(appendDecoded(nil, []byte(name)))
					_, plain := appendKeys(nil, []byte(decoded))
					odd := !plain && decoded != asked.name || asked.name == "line.items" || strings.ContainsAny(name, ";=") || asked.name == "user[0]" && name == "user[]" // or an array to us
					if _, found := form.Field(asked.name, fold.Plain); seen && !array && !odd && !found {
						t.Errorf("%s in %s: is not found", asked.name, form.Data)
					}
				}
			}
		}
	}
	for _, contentType := range types {
		for _, data := range []string{
			"rows=admin", "rows[]=1&rows[]=2&rows[]=3", "x=1;rows=a", "rows=a;b", "rows=a&+rows=b", "rows=%zz", "x=%&rows=a", "rows=a\x00", "&&rows=a&&", "rows", "rows[]&rows[]",
			"a=1& rows=b", "rows[a]=1&rows[b]=2&rows[a]=3", "rows=1&rows[]=2", "rows[]=2&rows=1",
			strings.Repeat("x=1&", 999) + "rows=a", strings.Repeat("x=1&", 1000) + "rows=a", strings.Repeat("rows[]=1&", 1500),
			"rows" + strings.Repeat("[a]", 70) + "=1", "rows" + strings.Repeat("[]", 20) + "=1",
		} {
			ask(t, &Body{ContentType: contentType, Data: []byte(data)})
			ask(t, &Body{ContentType: contentType, ContentEncoding: "gzip", Data: []byte(data)})
		}
	}

	// Parts.
	for _, name := range append(names, "a%20b") {
		if strings.Contains(name, "%") {
			continue
		}
		for _, disposition := range []string{
			`form-data; name="%s"`, `form-data; name='%s'`, `form-data; name=%s`, `attachment; name="%s"`, `form-data;name="%s"`, `form-data; Name="%s"`, `form-data; name = "%s"`,
			`form-data; name="%s`, `form-data; name="x"; name="%s"`, `form-data; name="%s"; name="x"`, `form-data; name*=utf-8''%s`, `form-data; name="x"; name*=utf-8''%s`,
			"form-data;\r\n name=\"%s\"", "form-data;\r\nname=\"%s\"", `name="%s"`, `; name="%s"`, `;;name="%s"`, `form-data; name="%s"; filename="f"`, `form-data; filename="%s"`,
			`form-data; name="%s"; filename=""`, `form-data; name="%s"; filename*=utf-8''f`, "form-data\r\nContent-ID: %s", "x: y; name=%s", `form-data; name="\%s"`, `form-data; name="%s\"`,
			`form-data; x="; name=y"; name=%s`, `form-data; x='; name=y'; name=%s`, `form-data; name=="%s"`, "form-data; name=%s\r\nContent-Disposition: form-data; name=x",
			"x; name=x\r\nX: Content-Disposition: form-data; name=%s", "form-data; name=\"%s\"\r\nContent-Type: text/plain; charset=utf-16", "\r\n form-data; name=%s", "form-data; name=%s x",
		} {
			inOnePart := fmt.Sprintf("--x\r\nContent-Disposition: "+disposition+"\r\n\r\nAdmin\r\n", name)
			ask(t, &Body{ContentType: multiType, Data: []byte(inOnePart + "--x--\r\n")})
			ask(t, &Body{ContentType: multiType, Data: []byte(strings.Repeat(inOnePart, 3) + "--x--\r\n")})
		}
	}
	one := "--x\r\nContent-Disposition: form-data; name=\"rows[]\"\r\n\r\nv\r\n"
	for _, contentType := range []string{
		multiType, "multipart/form-data;boundary=x", `multipart/form-data; boundary="x"`, "Multipart/Form-Data; Boundary=x", "multipart/form-data; charset=x; boundary=x", "multipart/form-data, boundary=x",
		"multipart/form-data; boundary=x; charset=x", "multipart/form-data; boundary=x,y", "multipart/form-data; boundary = x", "multipart/form-data; boundary=x ; x", `multipart/form-data; boundary="x`,
		"multipart/form-data; boundary=y; boundary=x", "multipart/form-data; boundary=x; boundary=y", "multipart/form-data; boundary=", "multipart/form-data x; boundary=x", "multipart/form-data\t; boundary=x",
		"multipart/mixed; boundary=x", "multipart/related; boundary=x", "multipart/x; boundary=x", "multipart/form-data; xboundary=x", "multipart/form-data; boundary='x'", "text/plain; boundary=x", "multipart/form-data; boundary=xx",
	} {
		for _, data := range []string{
			one + one + "--x--\r\n", one + one, one + one + "--x--", one + "--x--\r\n" + one + one + "--x--\r\n", "before\r\n" + one + one + "--x--\r\nafter",
			strings.ReplaceAll(one+one+"--x--\r\n", "\r\n", "\n"), strings.ReplaceAll(one+one+"--x--\r\n", "--x", " --x"), strings.ReplaceAll(one+one+"--x--\r\n", "--x", "--x "),
			strings.ReplaceAll(one+one+"--x--\r\n", "v\r\n", ""), strings.ReplaceAll(one+one+"--x--\r\n", "v\r\n", "v--x--v\r\n"), strings.ReplaceAll(one+one+"--x--\r\n", "v\r\n", "v\r\n--xy\r\nv\r\n"),
			"--x\r\n\r\nv\r\n" + one + one + "--x--\r\n", "--x\r\nContent-Disposition: form-data\r\n\r\nv\r\n" + one + "--x--\r\n", "--x--\r\n", "--x--\r\n" + one + "--x--\r\n", "--x\r\n", "",
			strings.Replace(one, "--x", "--x\x00y", 1) + one + "--x--\r\n", strings.Replace(one, "name", "na\x00me", 1) + one + "--x--\r\n", "--x\r\n" + one + "--x--\r\n",
			"rows[]=1&rows[]=2", strings.Repeat("a", 5120) + one + one + "--x--\r\n", one + "--x--\r\n" + strings.Repeat("a", 5120) + one + one + "--x--\r\n",
			"--x\r\nA: " + strings.Repeat("a", 5117) + one + one + "--x--\r\n", strings.ReplaceAll(one, "rows[]", "rows"), strings.ReplaceAll(one, "rows[]", "rows") + "--x--",
			strings.ReplaceAll(one, "v", strings.Repeat("v", 6000)) + one + "--x--\r\n", strings.ReplaceAll(strings.ReplaceAll(one, "rows[]", "rows"), "v", "\x00admin\x00") + "--x--\r\n",
		} {
			ask(t, &Body{ContentType: contentType, Data: []byte(data)})
		}
	}
	for _, length := range []int{70, 71, 250, 4097, 5100, 5112, 5113, 5114, 5115, 5116, 5117, 5118, 5119, 5120, 5121, 5122, 6000} {
		long := strings.Repeat("x", length)
		for _, data := range []string{
			strings.ReplaceAll(one+one, "--x", "--"+long) + "--" + long + "--\r\n", "--x\r\nA: " + long + one + one + "--x--\r\n", long + one + one + "--x--\r\n",
			one + "--x--\r\n" + long + one + one + "--x--\r\n", "--x\r\nA: " + long + "content-disposition: x; name=rows\r\n\r\nv\r\n--x--\r\n",
			"--x\r\n" + long + "\r\nContent-Disposition: x; name=rows\r\n\r\nv\r\n--x--\r\n", "--x\r\nContent-Disposition: " + long + "; name=rows\r\n\r\nv\r\n--x--\r\n",
			"--x\r\nContent-Disposition: form-data; name=rows\r\n\r\n" + long + "\r\n--x--\r\n",
		} {
			for _, boundary := range []string{"x", long} {
				ask(t, &Body{ContentType: "multipart/form-data; boundary=" + boundary, Data: []byte(data)})
			}
		}
	}

	// Forms that chance makes of what forms are made of.
	pieces := map[string][]string{
		formType: {
			"rows", "rows", "user", "line", "items", "0", "[", "]", "[]", "[", "]", ".", "_", " ", "+", "%20", "%00", "%5B", "%5d", "%", "=", "=a", "=b", "&", "&", "&", ";", "%0A", "\n", "\x00", "\xff", "a",
		},
		multiType: {
			"--x\r\n", "--x\r\n", "--x\r\n", "--x--\r\n", "--x", "--", "\r\n", "\r\n", "\n", "\r", "Content-Disposition: form-data; name=", "Content-Disposition: form-data; name=\"rows[]\"\r\n\r\n",
			"Content-Disposition: form-data; name=rows\r\n\r\n", "--x\r\nContent-Disposition: a; name=user[rows]\r\n\r\nv\r\n", "content-disposition:", ";name=", "; filename=", "Content-ID: ", "rows", "user", "[rows]", "[0]", "[]", "'", "\"", "\\",
			";", "=", ":", " ", "\t", "\x00", "v", "A: b\r\n",
			"--x\r\nContent-Disposition: form-data; name=\"rows\"\r\n\r\nv\r\n", "--x\r\nContent-Disposition: form-data; name=\" user[rows]\"\r\n\r\nw\r\n",
			"--x\r\nContent-Disposition: form-data; name=\"line.items\"\r\nA: b\r\n\r\n\r\r\n", "--x\r\nContent-Disposition: form-data; name=\"",
			"\"; filename=\"", "\"\r\n\r\nv\r\n",
		},
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 4000 {
		contentType := []string{formType, multiType}[i%2]
		var data strings.Builder
		for range random.IntN(24) {
			data.WriteString(pieces[contentType][random.IntN(len(pieces[contentType]))])
		}
		if contentType == multiType && i%4 == 1 {
			data.WriteString("\r\n--x--\r\n")
		}
		ask(t, &Body{ContentType: contentType, Data: []byte(data.String())})
		if t.Failed() && i > 200 {
			return
		}
	}
}
