package body

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func mustPath(tb testing.TB, text string) Path {
	tb.Helper()
	path, err := ParsePath(text)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func TestItemsCountWhatABodyAsksFor(t *testing.T) {
	const jsonType, form = "application/json", urlencoded
	multi := "multipart/form-data; boundary=x"
	part := func(name string) string {
		return "--x\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\nv\r\n"
	}
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
		{"a form in name only", form, "rows", `{"rows":[1,2,3]}`, 3, true},
		{"broken JSON", jsonType, "", `[1,2`, 0, false},
		{"two documents", jsonType, "", `[1][1,2,3]`, 0, false},
		{"no JSON", jsonType, "", `<rows/>`, 0, false},
		{"nested deeply", jsonType, "", strings.Repeat("[", 600) + strings.Repeat("]", 600), 1, true},
		{"nested too deeply", jsonType, "", strings.Repeat("[", 2000) + strings.Repeat("]", 2000), 0, false},
		{"brackets in strings", jsonType, "", `["` + strings.Repeat("[", 2000) + `\"["]`, 1, true},
		{"a repeated field", form, "id", "id=1&id=2&x=3", 2, true},
		{"PHP's repeated field", form, "id", "id[]=1&id%5B%5D=2", 2, true},
		{"indexed fields", form, "row", "row[0][a]=1&row[0][b]=2&row[1][a]=3", 2, true},
		{"another field that begins alike", form, "id", "ideas=1&id2=1", 1, true},
		{"no path in a form", form, "", "a=1&b=2", 1, true},
		{"a form with parts", multi, "f", part("f") + part("g") + part("f") + "--x--\r\n", 2, true},
		{"a form with a thousand parts", multi, "f", strings.Repeat(part("f"), 1000) + "--x--\r\n", 1000, true},
		{"a form that breaks off", multi, "f", part("f") + part("f"), 0, false},
		{"a form without boundary", "multipart/form-data", "f", part("f"), 0, false},
	} {
		body := Body{ContentType: test.contentType, Data: []byte(test.data)}
		if n, ok := body.Items(mustPath(t, test.path)); ok != test.ok || ok && n != test.want {
			t.Errorf("%s: got %d, %v, want %d, %v", test.about, n, ok, test.want, test.ok)
		}
	}
	if _, ok := (Body{ContentEncoding: "gzip", Data: []byte("[1]")}).Items(Path{}); ok {
		t.Error("a compressed body was understood without being read")
	}
}

func TestFieldIsOneValueOrNone(t *testing.T) {
	multi := "multipart/form-data; boundary=x"
	for _, test := range []struct{ about, contentType, data, want string }{
		{"a field", urlencoded, "log=Admin&pwd=x", "admin"},
		{"spaces and case", urlencoded, "log=+ADMIN%20", "admin"},
		{"a field given twice", urlencoded, "log=a&log=b", ""},
		{"an escaped name", urlencoded, "l%6Fg=a", "a"},
		{"no such field", urlencoded, "user=a", ""},
		{"JSON", "application/json", `{"log":"a"}`, ""},
		{"charset after the type", urlencoded + "; charset=UTF-8", "log=a", "a"},
		{"a form with parts", multi, "--x\r\nContent-Disposition: form-data; name=log\r\n\r\nAdmin\r\n--x--\r\n", "admin"},
	} {
		if got := (Body{ContentType: test.contentType, Data: []byte(test.data)}).Field("log"); got != test.want {
			t.Errorf("%s: got %q, want %q", test.about, got, test.want)
		}
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
	f.Add("application/json", "rows", []byte(`{"rows":[1,{"rows":[]}]}`))
	f.Add(urlencoded, "id", []byte("id[]=1&id[x]=%zz"))
	f.Add("multipart/form-data; boundary=x", "f", []byte("--x\r\n\r\n--x--"))
	f.Fuzz(func(t *testing.T, contentType, text string, data []byte) {
		path, err := ParsePath(text)
		if err != nil {
			return
		}
		body := Body{ContentType: contentType, Data: data}
		n, ok := body.Items(path)
		if ok && (n < 1 || n > len(data)+1) {
			t.Errorf("got %d items in %d bytes", n, len(data))
		}
		body.Field(text)
		var value any
		if json.Unmarshal(data, &value) != nil || body.media() == formData {
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
		body := Body{ContentType: "application/json", Data: []byte(rows)}
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
