package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	mimeparts "mime/multipart"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
)

func mustPath(tb testing.TB, text string) Path {
	tb.Helper()
	path, err := ParsePath(text)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

const (
	jsonType  = "application/json"
	formType  = "application/x-www-form-urlencoded"
	multiType = "multipart/form-data; boundary=x"
)

// parts returns a form of parts with these Content-Dispositions.
func parts(dispositions ...string) string {
	form := ""
	for _, disposition := range dispositions {
		form += "--x\r\nContent-Disposition: " + disposition + "\r\n\r\nv\r\n"
	}
	return form + "--x--\r\n"
}

// part returns a form of parts that has one field, with a value.
func part(disposition, value string) string {
	return strings.Replace(parts(disposition), "\r\n\r\nv", "\r\n\r\n"+value, 1)
}

func TestItemsCountWhatABodyAsksFor(t *testing.T) {
	for _, test := range []struct {
		about, contentType, path, data string
		want                           int
		ok                             bool
	}{
		{"an array", jsonType, "", `[1,2,3]`, 3, true},
		{"an empty array", jsonType, "", `[]`, 1, true},
		{"an object", jsonType, "", `{"a":[1,2]}`, 1, true},
		{"a scalar", jsonType, "", `7`, 1, true},
		{"nothing", jsonType, "rows", ``, 1, true},
		{"white space", jsonType, "rows", " \n", 1, true},
		{"an array in an object", jsonType, "rows", `{"rows":[1,2,3]}`, 3, true},
		{"an array further down", jsonType, "data.rows", `{"data":{"rows":[1,2]}}`, 2, true},
		{"a key that is not there", jsonType, "rows", `{"lines":[1,2]}`, 1, true},
		{"a key given twice, the last longer", jsonType, "rows", `{"rows":[1],"rows":[1,2,3]}`, 3, true},
		{"a key given twice, the first longer", jsonType, "rows", `{"rows":[1,2,3],"rows":[1]}`, 3, true},
		{"a parent given twice", jsonType, "a.rows", `{"a":{"rows":[1]},"a":{"rows":[1,2]}}`, 2, true},
		{"an escaped key", jsonType, "rows", `{"\u0072ows":[1,2]}`, 2, true},
		{"all elements", jsonType, "orders.#.lines", `{"orders":[{"lines":[1,2]},{"lines":[3]}]}`, 3, true},
		{"one element", jsonType, "1.lines", `[{"lines":[1]},{"lines":[1,2]}]`, 2, true},
		{"a dot in a key", jsonType, `a\.b`, `{"a.b":[1,2]}`, 2, true},
		{"a byte order mark", jsonType, "", "\ufeff[1,2]", 2, true},
		{"no content type", "", "", `[1,2]`, 2, true},
		{"a lie about the content type", "text/plain", "", `[1,2]`, 2, true},
		{"a form in name only", formType, "rows", `{"rows":[1,2,3]}`, 3, true},
		{"a form in name only, with a byte order mark", formType, "rows", "\ufeff" + `{"rows":[1,2,3]}`, 3, true},
		{"broken JSON", jsonType, "", `[1,2`, 0, false},
		{"two documents", jsonType, "", `[1][1,2,3]`, 0, false},
		{"no JSON", jsonType, "", `<rows/>`, 0, false},
		{"nested deeply", jsonType, "", strings.Repeat("[", 600) + strings.Repeat("]", 600), 1, true},
		{"nested too deeply", jsonType, "", strings.Repeat("[", 20000) + strings.Repeat("]", 20000), 0, false},
		{"brackets in strings", jsonType, "", `["` + strings.Repeat("[", 2000) + `\"["]`, 1, true},
		{"numbered keys", jsonType, "rows", `{"rows":{"0":{},"1":{},"2":{}}}`, 3, true},
		{"numbered keys of the whole body", jsonType, "", `{"0":1,"-1":2}`, 2, true},
		{"numbered keys and others", jsonType, "rows", `{"rows":{"0":{},"a":{},"1":{}}}`, 2, true},
		{"other keys", jsonType, "rows", `{"rows":{"a":{},"b":{},"-":{},"":{}}}`, 1, true},
		{"all elements of numbered keys", jsonType, "orders.#.lines", `{"orders":{"0":{"lines":[1,2]},"7":{"lines":[3]},"x":{"lines":[4]}}}`, 3, true},
		{"one of numbered keys", jsonType, "orders.7.lines", `{"orders":{"0":{"lines":[1]},"7":{"lines":{"1":1,"2":2}}}}`, 2, true},
		{"a repeated field", formType, "id", "id=1&id=2&x=3", 2, true},
		{"PHP's repeated field", formType, "id", "id[]=1&id%5B%5D=2", 2, true},
		{"indexed fields", formType, "row", "row[0][a]=1&row[0][b]=2&row[1][a]=3", 2, true},
		{"another field that begins alike", formType, "id", "ideas=1&id2=1", 1, true},
		{"no path in a form", formType, "", "a=1&b=2", 1, true},
		{"a form with parts", multiType, "f", parts(`form-data; name="f"`, `form-data; name="g"`, `form-data; name="f"`), 2, true},
		{"a form with a thousand parts", multiType, "f", strings.Repeat("--x\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n\r\n", 1000) + "--x--", 1000, true},
		{"a form that breaks off", multiType, "f", strings.TrimSuffix(parts(`form-data; name="f"`), "--x--\r\n"), 0, false},
		{"a form without boundary", "multipart/form-data", "f", parts(`form-data; name="f"`), 0, false},
		{"JSON that is called a form with parts", multiType, "", "[1,2]", 0, false},
		{"fields of a form that is not called one", "", "rows", `{"&rows[]=1&rows[]=2&":[]}`, 2, true},
		{"a part of its text that is no plain field", "", "rows", `{"&rows[]=1&rows[]":[]}`, 0, false},
		{"something after the type", formType + " x", "rows", `{"&rows[]=1&rows[]=2&rows[]":[]}`, 0, false},
	} {
		body := &Body{ContentType: test.contentType, Data: []byte(test.data)}
		if n, ok := body.Items(mustPath(t, test.path)); ok != test.ok || ok && n != test.want {
			t.Errorf("%s: got %d, %v, want %d, %v", test.about, n, ok, test.want, test.ok)
		}
	}
	for _, body := range []*Body{
		nil,
		{ContentEncoding: "gzip", Data: []byte("[1]")},
		{ContentEncoding: "identity, gzip", Data: []byte("[1]")},
		{ContentType: "application/json, application/x-www-form-urlencoded", Data: []byte("[1]")},
	} {
		if _, ok := body.Items(Path{}); ok {
			t.Errorf("%+v was understood without being read", body)
		}
	}
}

// TestItemsReadNamesAsPHPAndRackDo lists spellings of five items; each cost 1
// to a reader that compares names as they come.
func TestItemsReadNamesAsPHPAndRackDo(t *testing.T) {
	const many = 5
	for path, spellings := range map[string][]string{
		"rows":            {"rows[]=", "rows[][a]=1", "rows", "rows[][]=1", "rows%5B%5D"},
		"rows[]":          {"rows[]=1", "rows=1", "rows[][a]=1"},
		"orders[][lines]": {"orders[0][lines][]=1", "orders[][lines][]=1", "orders[][lines][0]=1"},
		`line\.items`:     {"line.items[]=", "line.items=1"},
		"line.items":      {"line[items]=1", "line[items][]=1", "line[items][][a]=1", "line%5Bitems%5D=1"},
		"order[lines]":    {"order[lines][]=1", "order[lines]=1"},
		"orders.#.lines":  {"orders[0][lines][]=1", "orders[][lines][]=1", "orders[][lines][0]=1"},
		"orders.0.lines":  {"orders[0][lines][]=1", "orders[][lines][]=1"},
	} {
		for _, spelling := range spellings {
			form := strings.Repeat(spelling+"&", many)
			body := &Body{ContentType: formType, Data: []byte(form)}
			if n, ok := body.Items(mustPath(t, path)); n != many || !ok {
				t.Errorf("%s in %s: got %d, %v, want %d", path, form, n, ok, many)
			}
		}
	}
	for path, spellings := range map[string][]string{
		"rows": {
			"+rows[]=", "%20rows%5B%5D", "  rows[]=1", "rows%00x=1", "rows%00[]=1", "rows[ ]=1", "rows[]x=1", "[rows]=1", "rows]=1", "]rows[]=1",
			"rows[]=1;rows[]", "x=1;rows[]=2",
		},
		"rows[]":       {"+rows[]="},
		"line_items":   {"line.items[]=", "line+items[]=", "line%20items%5b%5d=", "line.items=", "line[items=", "+line.items[]="},
		`line\.items`:  {"line_items[]=1", "line[items=1"},
		"line.items":   {"line.items=1"},
		"order[lines]": {"+order[lines][]=1", "order[lines=1"},
	} {
		for _, spelling := range spellings {
			body := &Body{ContentType: formType, Data: []byte("x=1&" + spelling)}
			if n, ok := body.Items(mustPath(t, path)); ok {
				t.Errorf("%s in %s: got %d, want it unclear", path, spelling, n)
			}
		}
	}
	indexed := &Body{ContentType: formType, Data: []byte("o[0][lines][a]=1&o[1][lines][a]=1&o[1][lines][a]=2&o[1][lines][b]=3")}
	if n, ok := indexed.Items(mustPath(t, "o.#.lines")); n != 3 || !ok {
		t.Errorf("got %d, %v for elements of two arrays, want 3", n, ok)
	}
}

// TestFormsOfPartsAreReadStrictly: a spelling that browsers do not write is not
// understood, so that it cannot mean one thing here and another behind.
func TestFormsOfPartsAreReadStrictly(t *testing.T) {
	const one = "Content-Disposition: form-data; name=\"rows[]\""
	form := func(head string) string {
		return strings.Replace(strings.Repeat("--x\r\n"+head+"\r\n\r\nv\r\n", 2)+"--x--\r\n", "v", "w", 1)
	}
	good := form(one)
	for about, test := range map[string]struct{ contentType, data string }{
		"a browser's":               {multiType, good},
		"a boundary in quotes":      {`multipart/form-data; boundary="x"`, good},
		"charset after it":          {multiType + "; charset=UTF-8", good},
		"charset before it":         {"multipart/form-data; charset=utf-8; boundary=x", good},
		"a type in capitals":        {"MULTIPART/Form-Data; boundary=x", good},
		"no end of the last line":   {multiType, strings.TrimSuffix(good, "\r\n")},
		"a file":                    {multiType, form(one + `; filename="a b; ü.png"` + "\r\nContent-Type: image/png")},
		"a header in small letters": {multiType, form("content-type: text/plain; charset=utf-8\r\ncontent-disposition: form-data; name=\"rows[]\"")},
	} {
		body := &Body{ContentType: test.contentType, Data: []byte(test.data)}
		if n, ok := body.Items(mustPath(t, "rows")); n != 2 || !ok {
			t.Errorf("%s: got %d, %v, want 2", about, n, ok)
		}
	}
	long := strings.Repeat("x", 71)
	for about, test := range map[string]struct{ contentType, data string }{
		"fields after the last part":     {multiType, good + good},
		"something before the first":     {multiType, "before\r\n" + good},
		"something after the last":       {multiType, good + "after"},
		"an empty line before the first": {multiType, "\r\n" + good},
		"no last boundary":               {multiType, strings.TrimSuffix(good, "--x--\r\n")},
		"a boundary within a line":       {multiType, strings.Replace(good, "v", "v--x--", 1)},
		"a longer boundary":              {multiType, strings.Replace(good, "v", "v\r\n--xy\r\n", 1)},
		"blanks after a boundary":        {multiType, strings.ReplaceAll(good, "--x\r\n", "--x \r\n")},
		"lines that end in LF":           {multiType, strings.ReplaceAll(good, "\r\n", "\n")},
		"a long boundary":                {"multipart/form-data; boundary=" + long, strings.ReplaceAll(good, "--x", "--"+long)},
		"a comma":                        {"multipart/form-data, boundary=x", good},
		"a blank before the equals sign": {"multipart/form-data; boundary =x", good},
		"two boundaries":                 {multiType + "; boundary=y", good},
		"another boundary":               {"multipart/form-data; boundary=y", good},
		"no boundary":                    {"multipart/form-data", good},
		"another charset":                {multiType + "; charset=utf-16", good},
		"mixed":                          {"multipart/mixed; boundary=x", good},
		"related":                        {"multipart/related; boundary=x", good},
		"a tab":                          {"multipart/form-data\t; boundary=x", good},
		"no header":                      {multiType, form("")},
		"no name":                        {multiType, form("Content-Disposition: form-data")},
		"an empty name":                  {multiType, form(`Content-Disposition: form-data; name=""`)},
		"another kind":                   {multiType, form(strings.Replace(one, "form-data", "attachment", 1))},
		"single quotes":                  {multiType, form(strings.ReplaceAll(one, `"`, "'"))},
		"no quotes":                      {multiType, form(strings.ReplaceAll(one, `"`, ""))},
		"a backslash":                    {multiType, form(strings.Replace(one, "o", `\o`, 1))},
		"name*":                          {multiType, form(one + "; name*=utf-8''x")},
		"filename*":                      {multiType, form(one + `; filename="a"; filename*=utf-8''a`)},
		"two names":                      {multiType, form(one + `; name="x"`)},
		"a name in the file's":           {multiType, form(one + `; filename="; name=log"`)},
		"NAME":                           {multiType, form(strings.Replace(one, "name", "NAME", 1))},
		"no blank":                       {multiType, form(strings.Replace(one, "; ", ";", 1))},
		"two dispositions":               {multiType, form(one + "\r\n" + one)},
		"one within another header":      {multiType, form(one + "\r\nX: Content-Disposition: x")},
		"an encoding":                    {multiType, form(one + "\r\nContent-Transfer-Encoding: base64")},
		"a folded line":                  {multiType, form(strings.Replace(one, "; ", ";\r\n ", 1))},
		"a header without a colon":       {multiType, form(one + "\r\nx")},
		"a NUL":                          {multiType, form(strings.Replace(one, "rows", "rows\x00", 1))},
		"a carriage return":              {multiType, form(strings.Replace(one, "rows", "rows\r", 1))},
		"a long header":                  {multiType, form(one + "\r\nX: " + strings.Repeat("x", 1400))},
		"pairs that are called parts":    {multiType, "rows[]=1"},
	} {
		body := &Body{ContentType: test.contentType, Data: []byte(test.data)}
		if n, ok := body.Items(mustPath(t, "rows")); ok {
			t.Errorf("%s: got %d items, want it not to be understood", about, n)
		}
		if value, found := body.Field("rows[]", fold.Plain); found {
			t.Errorf("%s: got the field %q, want none", about, value)
		}
	}
}

// TestOrdinaryFormsOfPartsAreUnderstood: no client pays for a form that could
// not be read if it is like everybody's.
func TestOrdinaryFormsOfPartsAreUnderstood(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	for fields := range 50 {
		var data bytes.Buffer
		form := mimeparts.NewWriter(&data)
		for i := range fields {
			content := make([]byte, 100*i)
			random.Read(content)
			if i%2 == 0 {
				form.WriteField("rows[]", string(content))
			} else if file, err := form.CreateFormFile("rows[]", `a file.png`); err == nil {
				file.Write(content)
			}
		}
		form.WriteField("log", "Admin")
		form.Close()
		body := &Body{ContentType: form.FormDataContentType(), Data: data.Bytes()}
		n, ok := body.Items(mustPath(t, "rows"))
		value, _ := body.Field("log", fold.Plain)
		if n != max(1, fields) || !ok || value != "admin" {
			t.Errorf("got %d, %v, want %d, and %q, want admin", n, ok, fields, value)
		}
	}
	for _, data := range []string{"--x--\r\n", "--x--"} {
		body := &Body{ContentType: multiType, Data: []byte(data)}
		n, ok := body.Items(mustPath(t, "rows"))
		if value, found := body.Field("log", fold.Plain); n != 1 || !ok || found {
			t.Errorf("%q: got %d, %v, and a field %q, want 1 and none", data, n, ok, value)
		}
	}
}

func TestFieldIsOneValueOrNone(t *testing.T) {
	for _, test := range []struct {
		about, contentType, data, want string // "" is not found
	}{
		{"a field", formType, "log=Admin&pwd=x", "admin"},
		{"spaces and case", formType, "log=+ADMIN%20", "admin"},
		{"NUL bytes around it", formType, "log=%00admin\x00", "admin"},
		{"given twice", formType, "log=a&log=b", "b"},
		{"given twice, last without a value", formType, "log=a&log=", ""},
		{"given a thousand times", formType, strings.Repeat("log=a&", 999) + "log=b", "b"},
		{"given twice, of which PHP reads the first", formType, "log=a&" + strings.Repeat("x&", 999) + "log=b", ""},
		{"given as an array", formType, "log[]=a", ""},
		{"given as an object", formType, "log[a]=a", ""},
		{"given as an array, then not", formType, "log[]=a&log=b", ""},
		{"given, then as an array", formType, "log=a&log[]=b", ""},
		{"given in two spellings", formType, "log=a&+log=b", ""},
		{"given in two spellings, one of them Rack's", formType, "log=a&[log]=b", ""},
		{"given in two spellings, after a blank", formType, "log=a& log=b", ""},
		{"given to PHP only, and to Rack only", formType, "+log=a&log]=b", ""},
		{"given to those who split at semicolons", formType, "x=1;log=a", ""},
		{"ending for some at a semicolon", formType, "log=a;b", ""},
		{"beside a semicolon", formType, "log=a&pwd=b;c", "a"},
		{"an escaped name", formType, "l%6Fg=a", "a"},
		{"a blank before the name", formType, "x=1&+log=a", ""},
		{"a NUL byte in the name", formType, "log%00x=a", ""},
		{"badly escaped", formType, "log=%zz%41", "%zza"},
		{"badly escaped elsewhere", formType, "log=a&x=%", "a"},
		{"no such field", formType, "user=a", ""},
		{"an empty field", formType, "log=+&user=a", ""},
		{"a name alone", formType, "log", ""},
		{"a form of nothing", formType, "", ""},
		{"nothing", jsonType, "", ""},
		{"another field that begins alike", formType, "logs=a&lo=b&log_=c", ""},
		{"JSON", jsonType, `{"log":"a"}`, ""},
		{"text", "text/plain", `log=a`, ""},
		{"no type", "", "log=a", "a"},
		{"no type and no such field", "", "x=a", ""},
		{"charset after the type", formType + "; charset=UTF-8", "log=a", "a"},
		{"something after the type", formType + " or so", "log=a", ""},
		{"a type in capitals", strings.ToUpper(formType), "log=a", "a"},
		{"two types", formType + ", " + jsonType, "log=a", ""},
		{"parts", multiType, part(`form-data; name="log"`, "Admin"), "admin"},
		{"parts without it", multiType, parts(`form-data; name="x"`), ""},
		{"parts that give it twice", multiType, parts(`form-data; name="log"`, `form-data; name="log"`), "v"},
		{"a file", multiType, parts(`form-data; name="log"; filename="x"`), ""},
		{"a field, then a file", multiType, parts(`form-data; name="log"`, `form-data; name="log"; filename=""`), ""},
		{"a name with a blank before it", multiType, part(`form-data; name=" log"`, "Admin"), ""},
		{"another encoding of a part", multiType, part("form-data; name=\"log\"\r\nContent-Transfer-Encoding: base64", "YWRtaW4="), ""},
	} {
		body := &Body{ContentType: test.contentType, Data: []byte(test.data)}
		if got, found := body.Field("log", fold.Plain); got != test.want || found != (got != "") {
			t.Errorf("%s: got %q, %v, want %q", test.about, got, found, test.want)
		}
	}
	for _, test := range []struct {
		body, name, want string
	}{
		{"user[login]=a&user[pass]=b", "user[login]", "a"},
		{"+user[login]=a", "user[login]", ""},
		{"user[pass]=b", "user[login]", ""},
		{"user[login][]=a", "user[login]", ""},
		{"user[][login]=a", "user[login]", ""},
		{"user[login]=a&user=b", "user[login]", ""},
		{"user.login=a", "user_login", ""},
		{"Input.Email=a&Input.Password=b", "Input.Email", "a"},
		{"Input_Email=a", "Input.Email", ""},
		{"submit.x=1&submit.y=2&log=a", "log", "a"},
		{"log[]=a", "log[]", "a"},
		{"log[]=a&log[]=b", "log[]", ""},
		{"log[0]=a", "log[]", ""},
		{"log=a", "log[]", ""},
		{"user login=a", "user.login", ""},
		{"user_login=a&user.login=b", "user_login", ""},
	} {
		if got, _ := (&Body{ContentType: formType, Data: []byte(test.body)}).Field(test.name, fold.Plain); got != test.want {
			t.Errorf("%s of %s: got %q, want %q", test.name, test.body, got, test.want)
		}
	}
	for about, body := range map[string]*Body{
		"was not read":         nil,
		"is called compressed": {ContentType: formType, ContentEncoding: "gzip", Data: []byte("log=a")},
	} {
		if got, found := body.Field("log", fold.Plain); found {
			t.Errorf("got %q from a body that %s, want none", got, about)
		}
	}
}

func TestWithinForgetsABodyThatIsTooLong(t *testing.T) {
	body := &Body{Data: []byte("1234")}
	if body.Within(4) != body || body.Within(3) != nil || (*Body)(nil).Within(9) != nil {
		t.Error("got a body that is too long, or lost one that is not")
	}
}

func TestParsePathRefusesWhatHasManyMeanings(t *testing.T) {
	for _, text := range []string{"rows.*", "a..b", ".a", "a.", "@reverse", "a|b", `friends.#(age>1)`, "{a,b}"} {
		if _, err := ParsePath(text); err == nil {
			t.Errorf("%q: got no error", text)
		}
	}
}

func FuzzItems(f *testing.F) {
	for _, path := range []string{"", "rows", "a.#.b", "line_items", "user[login]"} {
		for _, data := range []string{
			`{"rows":[1,{"rows":[]}]}`, `{"rows":{"0":1,"1":{}}}`, `{"a":[{"b":[]},{"b":{"0":7}}]}`,
			"rows[]=1&rows[x]=%zz", "a[0][b][]=1;a[][b]=2", "+line.items[=&line_items%00x", "[rows]]=&user[login][=%", "a[x]\n[]b",
		} {
			for _, contentType := range []string{jsonType, formType, ""} {
				f.Add(contentType, path, []byte(data))
			}
		}
		for _, data := range []string{
			"--x\r\n\r\n--x--", parts(`form-data; name="rows[]"`, `x; name='a"b`, `filename=rows`), "--x\nContent-Disposition:;name=\\\n\nv\n--x",
			"--x--\r\n--x\r\ncontent-id: rows\r\ncontent-disposition: :;name=\"\\\"\r\n\r\n\r\n--x--",
		} {
			for _, contentType := range []string{multiType, "multipart/form-data; boundary=", `multipart/mixed; boundary="x`, "MULTIPART/form-data;BOUNDARY=x"} {
				f.Add(contentType, path, []byte(data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, contentType, text string, data []byte) {
		path, err := ParsePath(text)
		if err != nil {
			return
		}
		body := &Body{ContentType: contentType, Data: data}
		n, ok := body.Items(path)
		if ok && (n < 1 || n > len(data)+1) {
			t.Errorf("got %d items in %d bytes", n, len(data))
		}
		if value, found := body.Field(text, fold.Plain); found != (value != "") {
			t.Errorf("got %q, %v", value, found)
		}
		var value any
		if kind, _ := body.form(func(field) {}); kind == multipart || json.Unmarshal(data, &value) != nil {
			return
		}
		if want := decoded(value, path.keys); ok && n < want {
			t.Errorf("got %d items at %q of %s, and the standard library sees %d", n, text, data, want)
		}
	})
}

// decoded counts as an application does that takes the last of two equal keys.
func decoded(value any, keys []string) (n int) {
	switch value := value.(type) {
	case []any:
		if len(keys) == 0 {
			return len(value)
		}
		for at, element := range value {
			if keys[0] == "#" || keys[0] == strconv.Itoa(at) {
				n += decoded(element, keys[1:])
			}
		}
	case map[string]any:
		if len(keys) > 0 {
			if member, ok := value[keys[0]]; ok {
				return decoded(member, keys[1:])
			}
		}
	}
	return n
}

func BenchmarkItems(b *testing.B) {
	for _, path := range []string{"", "data.rows"} {
		rows := "[" + strings.Repeat(`{"id":12345,"name":"some name","price":1.25},`, 64*1024/46-1) + "1]"
		if path != "" {
			rows = `{"data":{"rows":` + rows + `}}`
		}
		body := &Body{ContentType: "application/json", Data: []byte(rows)}
		at := mustPath(b, path)
		b.Run(fmt.Sprintf("path=%s", path), func(b *testing.B) {
			b.SetBytes(int64(len(rows)))
			for b.Loop() {
				if n, ok := body.Items(at); !ok || n < 1000 {
					b.Fatalf("got %d, %v", n, ok)
				}
			}
		})
	}
}

// BenchmarkHostileForms measures what is costly to read: the time per byte must
// not grow with the size.
func BenchmarkHostileForms(b *testing.B) {
	hostile := map[string]struct{ contentType, unit string }{
		"brackets":    {formType, "["},
		"unclosed":    {formType, "a[a"},
		"closed":      {formType, "a[a]"},
		"and":         {formType, "&"},
		"semicolons":  {formType, ";"},
		"arrays":      {formType, "rows[]&"},
		"indexes":     {formType, "rows[%d]&"},
		"newlines":    {formType, "a%%0a[]"},
		"boundaries":  {"multipart/form-data; boundary=" + strings.Repeat("-", 5000), "-"},
		"boundary":    {"multipart/form-data; boundary=" + strings.Repeat("-", 60), "\r\n" + strings.Repeat("-", 62)},
		"bare lines":  {multiType, "\n"},
		"lines":       {multiType, "--x\r\n"},
		"names":       {multiType, ";name=\""},
		"headers":     {multiType, "content-disposition:;name=\\\r\n"},
		"blanks":      {multiType, "content-disposition:        ;        name="},
		"continued":   {multiType, "a:\r\n b\r\n"},
		"quotes":      {multiType, "\"'"},
		"lists":       {jsonType, "["},
		"elements":    {jsonType, "{\"0\":"},
		"quoted JSON": {jsonType, "\"\\"},
	}
	for name, form := range hostile {
		for _, size := range []int{4 << 10, 64 << 10} {
			var data strings.Builder
			if strings.HasPrefix(form.contentType, "multipart") {
				_, boundary, _ := strings.Cut(form.contentType, "=")
				data.WriteString("--" + boundary + "\r\ncontent-disposition: form-data; name=x\r\n")
			}
			for i := 0; data.Len() < size; i++ {
				unit := form.unit
				if strings.Contains(unit, "%") {
					unit = fmt.Sprintf(unit, i)
					unit, _, _ = strings.Cut(unit, "%!")
				}
				data.WriteString(unit)
			}
			if strings.HasPrefix(form.contentType, "multipart") {
				data.WriteString("\r\n\r\n" + form.unit + "\r\n--x--\r\n")
			}
			body := &Body{ContentType: form.contentType, Data: []byte(data.String())}
			path := mustPath(b, "rows")
			b.Run(fmt.Sprintf("form=%s/size=%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(data.Len()))
				b.ReportAllocs()
				for b.Loop() {
					body.Items(path)
					body.Field("log", fold.Plain)
				}
			})
		}
	}
}
