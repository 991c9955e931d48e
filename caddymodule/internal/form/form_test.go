package form

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

const (
	formType  = "application/x-www-form-urlencoded"
	jsonType  = "application/json"
	multiType = "multipart/form-data; boundary=x"
)

// planOf returns a plan of fields and arrays, which are then numbered in this order.
func planOf(t testing.TB, fields, arrays []string) *Plan {
	t.Helper()
	p := new(Plan)
	for _, name := range fields {
		check.Must(p.Field(name))(t)
	}
	for _, path := range arrays {
		check.Must(p.Array(path))(t)
	}
	return p
}

func bodyOf(t testing.TB, p *Plan, contentType string, data []byte) *Reading {
	t.Helper()
	r := p.Read()
	r.Body(contentType, "", int64(len(data)), bytes.NewReader(data))
	return r
}

// field returns a value, absent or unclear.
func (r *Reading) field(i int) string {
	switch value, state := r.Field(Field(i)); state {
	case One:
		return "=" + value
	case Unclear:
		return "unclear"
	}
	return "absent"
}

// count returns a number, or unclear.
func (r *Reading) count(i int) string {
	if n, sure := r.Items(Array(i)); sure {
		return strconv.Itoa(n)
	}
	return "unclear"
}

// part returns a form of parts with this header, twice.
func part(head string) string {
	return strings.Repeat("--x\r\n"+head+"\r\n\r\na\r\n", 2) + "--x--\r\n"
}

const logPart = `Content-Disposition: form-data; name="log"`

func TestField(t *testing.T) {
	for _, test := range []struct{ about, contentType, body, want string }{
		{"alone", formType, "log=Admin&pwd=x", "=Admin"},
		{"escaped", formType, "l%6Fg=a+%62%0A", "=a b\n"},
		{"in another spelling", formType, "_L.o-G=a", "=a"},
		{"twice", formType, "log=a&log=b", "unclear"},
		{"twice the same", formType, "log=a&+log=a", "=a"},
		{"twice in two spellings", formType, "log=a&Log=b", "unclear"},
		{"in letters of another script", formType, "%D0%9B=a&log=b", "=b"},
		{"empty", formType, "log=&x", "="},
		{"without a value", formType, "x&log", "="},
		{"absent", formType, "logs=a&lo=b&xlog=c&x[log]=d&log2=e", "absent"},
		{"an array", formType, "log[]=a", "unclear"},
		{"an array with indexes", formType, "log[0]=a", "unclear"},
		{"an object", formType, "log[a]=b", "unclear"},
		{"a bracket too few", formType, "log[=a", "unclear"},
		{"a bracket too many", formType, "log]=a", "unclear"},
		{"a bracket before it", formType, "[log]=a", "unclear"},
		{"something after a bracket", formType, "log[0].x=a", "unclear"},
		{"another name that is odd", formType, "Items[0].Name=x&a[=y&=&log=a", "=a"},
		{"another name that begins with a bracket", formType, "[]=&log=a", "unclear"},
		{"too deep", formType, "log[1][2][3][4][5][6][7][8][9]=a", "unclear"},
		{"1,000 deep", formType, "log" + strings.Repeat("[a]", 1000) + "=a", "unclear"},
		{"another 300 deep", formType, "x" + strings.Repeat("[a]", 300) + "=a&log=b", "=b"},
		{"another too deep", formType, "x[1][2][3][4][5][6][7][8][9]=a&log=b", "=b"},
		{"a type", formType, "log:utf-7:string=a", "unclear"},
		{"a colon after another name", formType, "x:log=a&lo:g:=b", "=b"},
		{"a NUL", formType, "log%00x=a", "unclear"},
		{"a NUL before it", formType, "%00log=a", "unclear"},
		{"a NUL in the value", formType, "log=a%00", "=a\x00"},
		{"a NUL at the end of the form", formType, "log=a\x00", "unclear"},
		{"badly escaped", formType, "log=%zz", "unclear"},
		{"badly escaped at the end", formType, "log=a%4", "unclear"},
		{"a badly escaped name", formType, "lo%u0067=a", "unclear"},
		{"badly escaped elsewhere", formType, "x=%&%=&log=a&xx%u=b", "unclear"},
		{"a badly escaped value elsewhere", formType, "x=%&y=50%-&log=a&xx%u=b", "=a"},
		{"not UTF-8", formType, "l\xc1og=a", "unclear"},
		{"not UTF-8, with a letter that Shift_JIS has in a pair", formType, "\x83a[l]o\x83agx=a", "unclear"},
		{"another name, in Shift_JIS", formType, "\x83\x81\x81[\x83\x8b[\x8fZ]=x&log=a", "=a"},
		{"a value that is not", formType, "log=\xff", "=\xff"},
		{"a letter that is like s or k", formType, "x=1&lo%C7%A5=a", "absent"},
		{"before a semicolon", formType, "log=a;b", "unclear"},
		{"after a semicolon", formType, "x=1;log=a", "unclear"},
		{"beside a semicolon", formType, "log=a&pwd=b;c&d", "=a"},
		{"a long value", formType, "log=" + strings.Repeat("a", longestValue), "=" + strings.Repeat("a", longestValue)},
		{"a longer value", formType, "log=" + strings.Repeat("a", longestValue+1), "unclear"},
		{"a long name", formType, strings.Repeat("+", 1021) + "log=a", "=a"},
		{"a longer name", formType, strings.Repeat("+", 1022) + "log=a", "unclear"},
		{"another long name", formType, "x" + strings.Repeat("+", 9999) + "&log=a", "=a"},
		{"10,000 fields", formType, strings.Repeat("&", 9999) + "log=a", "=a"},
		{"more fields", formType, strings.Repeat("&", 10000) + "log=a", "unclear"},
		{"no type", "", "log=a", "=a"},
		{"a charset", formType + "; charset=UTF-8", "log=a", "=a"},
		{"a charset of another alphabet", formType + "; charset=ibm037", "x=a", "unclear"},
		{"a charset that is encoded", formType + "; charset*=utf-7''utf-7", "x=a", "unclear"},
		{"capitals", strings.ToUpper(formType), "log=a", "=a"},
		{"something after the type", formType + " foo", "x=a", "unclear"},
		{"something before it", "x" + formType, "x=a", "unclear"},
		{"two types", formType + ", " + jsonType, "x=a", "unclear"},
		{"a charset without a body", "text/plain; charset=utf-7", "", "unclear"},
		{"no body", formType + ", " + jsonType, "", "absent"},

		{"JSON", jsonType, `{"x": [1, {"log": 2}], "log": "a"}`, "=a"},
		{"JSON, escaped", jsonType, `{"l\u006f\u0047":"\u00e4\n\/"}`, "=ä\n/"},
		{"JSON, an escaped emoji", jsonType, `{"log":"\ud83d\ude00"}`, "unclear"},
		{"JSON, a letter like k", jsonType, `{"x":1,"log\u212a":"a"}`, "absent"},
		{"JSON, a number", jsonType, `{"log": -12}`, "=-12"},
		{"JSON, a fraction", jsonType, `{"log": 1.0}`, "unclear"},
		{"JSON, a long number", jsonType, `{"log": 1234567890123456}`, "unclear"},
		{"JSON, null", jsonType, `{"log": null}`, "unclear"},
		{"JSON, an array", jsonType, `{"log": []}`, "unclear"},
		{"JSON, an object", jsonType, `{"log": {"x": "a"}}`, "unclear"},
		{"JSON, twice", jsonType, `{"log": "a", "log": "b"}`, "unclear"},
		{"JSON, elements", jsonType, `[{"log": "a"}, {"log": "a"}]`, "=a"},
		{"JSON, below", jsonType, `{"x": {"log": "a"}}`, "absent"},
		{"JSON, a prototype", jsonType, `{"__proto__": {"log": "a"}}`, "unclear"},
		{"JSON, documents", jsonType, "{}\n{\"log\": \"a\"} 1 \"x\"[]\n", "=a"},
		{"JSON, BOM", jsonType, "\ufeff {\"log\": \"a\"}", "=a"},
		{"JSON, a scalar", jsonType, "17", "absent"},
		{"JSON, blanks", jsonType, " \n", "absent"},
		{"JSON, broken off", jsonType, `{"log": "a"`, "unclear"},
		{"JSON, broken off in a string", jsonType, `["`, "unclear"},
		{"JSON, comma", jsonType, `{"x": "a",}`, "unclear"},
		{"JSON, comma in an array", jsonType, `[1,]`, "unclear"},
		{"JSON, comment", jsonType, `{/**/}`, "unclear"},
		{"JSON, no quotes", jsonType, `{x: 1}`, "unclear"},
		{"JSON, single quotes", jsonType, `{'x': 1}`, "unclear"},
		{"JSON, NaN", jsonType, `[NaN]`, "unclear"},
		{"JSON, brackets", jsonType, `[}`, "unclear"},
		{"JSON, more brackets", jsonType, `{}}`, "unclear"},
		{"JSON, a bad name", jsonType, "{\"x\xff\": 1}", "unclear"},
		{"JSON, half a name", jsonType, `{"\ud83d": 1}`, "unclear"},
		{"JSON, a bad escape in a name", jsonType, `{"\x": 1}`, "unclear"},
		{"JSON, a control byte in a name", jsonType, "{\"x\x00\": 1}", "unclear"},
		{"JSON, DEL", jsonType, "{\"x\x7f\": 1, \"log\": \"\x7f\"}", "=\x7f"},
		{"JSON, a bad value", jsonType, "{\"log\": \"a\xff\"}", "unclear"},
		{"JSON, a control byte", jsonType, "{\"log\": \"a\n\"}", "unclear"},
		{"JSON, a long value", jsonType, `{"log": "` + strings.Repeat("a", longestValue+1) + `"}`, "unclear"},
		{"JSON, a longer value with escapes", jsonType, `{"log": "a` + strings.Repeat(`\n`, longestValue) + `"}`, "unclear"},
		{"JSON, long names", jsonType, `{"` + strings.Repeat("a", 9999) + `": "` + strings.Repeat(`\"`, 9999) + `", "log": "a"}`, "=a"},
		{"JSON, deep", jsonType, strings.Repeat("[", 512) + strings.Repeat("]", 512), "absent"},
		{"JSON, 64 KiB deep", jsonType, strings.Repeat(`{"x":`, 64<<10/5) + `{"log":"a"}`, "unclear"},
		{"JSON, deeper", jsonType, strings.Repeat("[", 513) + strings.Repeat("]", 513), "unclear"},
		{"JSON in UTF-16", jsonType, "{\x00\"\x00", "unclear"},
		{"JSON in another charset", jsonType + "; charset=utf-16", "{}", "unclear"},
		{"JSON of another name", "application/vnd.api+json", `{"log": "a"}`, "=a"},
		{"JSON under another type", "text/plain", "\r\n" + `{"l\u006fg": "a"}`, "=a"},
		{"JSON of no type", "", `{"log": "a"}`, "=a"},
		{"JSON that is called a form", formType, `{"log": "a"}`, "=a"},
		{"JSON that is called a form, with other brackets", formType, `{log: "a"}`, "unclear"},
		{"JSON after blanks", "text/plain", "\v\f" + `{"\u006cog": "a"}`, "=a"},
		{"JSON after comments", formType, `/* x */ /***/{"\u006cog": "a"}`, "unclear"},
		{"JSON after lines of comments", "text/plain", "// x\n/**/\n" + `{"\u006cog": "a"}`, "unclear"},
		{"JSON after a long comment", "text/plain", "/*" + strings.Repeat("*", 99_999) + `/{"\u006cog": "a"}`, "unclear"},
		{"JSON after other comments", "text/plain", "# x\r#\n/**/ {'\\u006cog':'a'}", "unclear"},
		{"JSON after long ones", "text/plain", "# x\n#" + strings.Repeat("*", 99_999) + "\n{'log':'a'}", "unclear"},
		{"JSON that is no script", "text/plain", ")]}'\n{\"\\u006cog\":'a'}", "unclear"},
		{"a heading", "text/markdown", "# log\n", "absent"},
		{"a heading before a link", "text/markdown", "# log\n\n[a](b)" + strings.Repeat("\n# log", 9_999), "absent"},
		{"a script", "text/javascript", "/* log */\n// {\nf('/*{*/')/[1]\n", "absent"},
		{"JSON that is a form, too", "", `{"x":"&log=a&y="}`, "=a"},
		{"JSON with the name in a string", "text/plain", `{"x": "log", "y": ["log"]}`, "absent"},

		{"text", "text/plain", "x=1\r\nlog=a", "unclear"},
		{"text with escapes", "text/plain", "x=1;2&%6Co%67=a", "unclear"},
		{"text with a semicolon", "text/plain", "x=1;%6Co%67=a", "unclear"},               // as CGI of Ruby reads it
		{"text with a NUL behind the name", "text/plain", "x=1&%6Co%67%00%=a", "unclear"}, // where parse_str of PHP ends it
		{"text with a stray % behind a bracket", "text/plain", "x=1&log[]%=a", "unclear"}, // behind which it leaves all out
		{"text with Latin 1 behind a bracket", "text/plain", "x=1&log[x]]%E9=a", "unclear"},
		{"text with much behind a bracket", "text/plain", "x=1&log%5Bx%5D" + strings.Repeat("y", 9_999) + "=a", "unclear"},
		{"text with Latin 1 and a bracket", "text/plain", "x=1&log%E9[]=a", "absent"},
		{"text with many blanks", "text/plain", "x=1&" + strings.Repeat("%20", 400) + "log=a", "unclear"}, // which PHP leaves out
		{"text with blanks up to where it is cut", "text/plain", "x=1&" + strings.Repeat("%20", 340) + "log%00b=a", "unclear"},
		{"JSON with many blanks", jsonType, `{"x": "&` + strings.Repeat("+", 9_999) + `log=a&"}`, "unclear"},
		{"text with brackets", "image/png", "\x01=&log%5B%5D=a", "unclear"},
		{"JSON with pairs", jsonType, `{"x": "&log=a&"}`, "unclear"},
		{"JSON with semicolons", jsonType, `{"x": "&amp;log=a&"}`, "unclear"}, // as CGI of Ruby reads it
		{"JSON with other pairs", jsonType, `[{"lo": ["a=b&[x[=c&lo[=d"]}]`, "absent"},
		{"a script with brackets", "text/javascript", "a&&x[log[0]]=1;f(b&log[0)\n==1&log", "absent"},
		{"text with blanks", "text/plain", "x\n[log] = a", "unclear"},
		{"text behind a mark", "text/plain", "x=1 !log=a", "unclear"},
		{"text, a word", "text/plain", "the log of my logs = 7, log\n", "absent"},
		{"text in quotes", "text/plain", `x "Log": 1`, "unclear"},
		{"text in longer quotes", "text/plain", `"a log"`, "absent"},
		{"XML", "text/xml", "<a><log>a</log></a>", "unclear"},
		{"XML that is called a form", formType, "\r\n<a><log>a</log></a>", "unclear"},
		{"XML that is called a form, an attribute", formType, "<a log='b'>", "unclear"},
		{"XML that is called a form, in UTF-16", formType, "\xff\xfe<\x00l\x00o\x00g\x00>\x00", "unclear"},
		{"XML of no type, an attribute", "", "<a log='b'>", "unclear"},
		{"a form like XML", formType, "<a=<log>&x='log='", "unclear"},
		{"XML, a namespace", "text/xml", "<a:b><c:log>", "unclear"},
		{"XML, an attribute", "text/xml", "<a log\n= 'b'>", "unclear"},
		{"XML in UTF-16", "text/xml", "\xfe\xff\x00<\x00l\x00o\x00g\x00>", "unclear"},
		{"XML without it", "text/xml", "<?xml version='1.0' encoding='UTF-8'?><a><logs x='log'>log</logs></a>", "absent"},
		{"XML in UTF-7", "text/xml", "<?xml version='1.0' encoding='UTF-7'?>+ADw-log+AD4-", "unclear"},
		{"XML in UTF-7, as it says late", "text/xml", "<?xml version='1.0'" + strings.Repeat(" ", 99_999) + "encoding='UTF-7'?>+ADw-log+AD4-", "unclear"},
		{"XML in EBCDIC", "text/xml", "\x4c\x6f\xa7\x94", "unclear"},
		{"XML with entities", "text/xml", `<!DOCTYPE x [<!ENTITY a "b">]><x/>`, "unclear"},
		{"YAML", "application/x-yaml", "log: a", "unclear"},
		{"TOML with an escape", "application/toml", `"lo\u0067" = "a"`, "unclear"},
		{"MessagePack", "application/msgpack", "\x81\xa3log\xa1a", "unclear"},
		{"CSV", "text/csv", "log,pwd\na,b\n", "unclear"},
		{"CBOR in pieces", "application/cbor", "\xa1\x7f\x61l\x62og\xff\x61a", "unclear"},
		{"XML with default attributes", "text/xml", `<!DOCTYPE x [<!ATTLIST x log CDATA "a">]><x/>`, "unclear"},
		{"HTML", "text/html", "<!doctype html><p>entity", "absent"},
		{"a photo", "image/jpeg", "\xff\xd8\xff\xe0\x00\x10JFIF<lo>\xfflog \"log", "absent"},
		{"another multipart", "multipart/mixed; boundary=x", part(logPart), "unclear"},
		{"an almost multipart", "multipart; xboundary=x", part(logPart), "unclear"},
	} {
		p := planOf(t, []string{"log"}, nil)
		check.Equal(t, bodyOf(t, p, test.contentType, []byte(test.body)).field(0), test.want, "%s", test.about)
	}
}

// TestShortNames are in every photo.
func TestShortNames(t *testing.T) {
	p := planOf(t, []string{"u", "pwd"}, nil)
	for body, want := range map[string]string{"u=1": "unclear", "\x00u\x00=": "unclear", "\xff\x01&u=<u": "absent"} {
		check.Equal(t, bodyOf(t, p, "application/octet-stream", []byte(body)).field(0), want, "%q", body)
	}
	check.Equal(t, bodyOf(t, p, "image/png", []byte("\x01&pwd=")).field(1), "unclear", "a longer name")
	check.Equal(t, bodyOf(t, p, "application/x-url-encoded", []byte("%75=a")).field(0), "unclear", "an escaped one")
}

func TestNestedField(t *testing.T) {
	fields := []string{"user[login]", "users[][Login]", "p", "user_email"}
	for _, test := range []struct{ contentType, body, want string }{
		{formType, "user[login]=a&user[pass]=b", "=a absent absent absent"},
		{formType, "user.login=a&users[7][login]=b&user[email]=c", "=a =b absent =c"},
		{formType, "user[login][]=a", "unclear absent absent absent"},
		{formType, "user[login]x=a", "unclear unclear absent unclear"},
		{formType, "user=a&user[pass]=b&page=c&p2=d", "absent absent absent absent"},
		{formType, "users[=a&p[x[=a", "absent unclear unclear absent"},
		{formType, "users][0][login]=a", "absent unclear absent absent"},
		{formType, "users[;0][login]=a", "absent unclear absent absent"},
		{formType, "x&amp;users[0][email]=a&user=b;c", "absent absent absent absent"},
		{formType, "users%00[0][login]=a", "absent unclear absent absent"},
		{formType, "users[x%0a[][login]=a", "absent unclear absent absent"}, // Rack looks at the last line
		{formType, "x&[0]users[login]=a", "unclear unclear unclear unclear"},
		{jsonType, `{"user": {"login": "a", "email": "x"}, "users": [{"login": "b"}], "p": 1}`, "=a =b =1 =x"},
		{jsonType, `{"users": {"0": {"login": "b"}, "1": {"login": "c"}}}`, "absent unclear absent absent"},
		{jsonType, `{"Login": "a", "x": {"login": "x"}, "email": "y"}`, "=a =a absent absent"},
		{jsonType, `[{"login": "a"}, {"user": {"login": "b"}, "Login": {}}]`, "unclear unclear absent absent"},
		{multiType, strings.ReplaceAll(part(logPart), "log", "User[Login]"), "=a absent absent absent"},
		{multiType, part("Content-Disposition: form-data; name=user\r\nContent-Type: application/vnd.x+json"), "unclear unclear absent unclear"},
		{multiType, part("Content-Disposition: form-data; name=\"users\"; filename=a\r\nContent-Type: application/x-www-form-urlencoded"), "absent unclear absent absent"},
		{"text/plain", "%5fcsrf=x&User%5Blogin%5D=a&user%20email=b&users%5B0%5D%5Blo", "unclear absent absent unclear"},
		{"text/plain", "user%5Blogin%5D;x=a&%5F;", "unclear absent absent absent"},              // as PHP reads it
		{"text/plain", "user[login]x=a&users[0][login]x[y]=a", "unclear unclear absent absent"}, // as PHP reads it
		{jsonType, `{"user": ["&user[email=a&[login]=a&users[=a&"]}`, "absent absent absent unclear"},
		{"text/xml", "<user><login>", "unclear unclear absent absent"},
		{formType, "\x4c\x6f\xa7\x94", "unclear unclear unclear unclear"}, // XML in EBCDIC
	} {
		r := bodyOf(t, planOf(t, fields, nil), test.contentType, []byte(test.body))
		check.Equal(t, r.field(0)+" "+r.field(1)+" "+r.field(2)+" "+r.field(3), test.want, "%s", test.body)
	}
}

func TestQuery(t *testing.T) {
	for _, test := range []struct{ queries, body, want string }{
		{"", "", "absent absent"},
		{"log=a", "", "=a absent"},
		{"?log=a", "pwd=b", "=a =b"},
		{"log=a", "log=b", "unclear absent"},
		{"log=a log=a&pwd=", "log=a", "=a ="},
		{"log=a log=b", "", "unclear absent"},
		{"x;log=a", "", "unclear absent"},
		{"pwd=b&log=a#b", "", "unclear =b"},
		{strings.Repeat("&", mostFields) + "x", "", "unclear unclear"},
	} {
		p := planOf(t, []string{"log", "pwd"}, []string{"rows"})
		r := p.Read()
		for query := range strings.SplitSeq(test.queries, " ") {
			r.Query(query)
		}
		r.Query("rows[]=1&rows[=2") // arrays are counted in bodies
		r.Body(formType, "", -1, strings.NewReader(test.body))
		got := r.field(0) + " " + r.field(1)
		check.That(t, got == test.want && r.count(2) == "0", "%.40s, %s: got %s and %s rows, want %s", test.queries, test.body, got, r.count(2), test.want)
		carries := r.Carries(0, 1)
		check.That(t, carries != (test.want == "absent absent"), "%s, %s: carries %v", test.queries, test.body, carries)
	}
}

func TestParts(t *testing.T) {
	good := part(logPart)
	twice := func(head string) string { return part(head) }
	for _, test := range []struct{ about, contentType, body string }{
		{"as browsers write it", multiType, good},
		{"a boundary in quotes", `multipart/form-data; boundary="x"`, good},
		{"a charset after it", multiType + "; charset=UTF-8", good},
		{"a charset before it", "multipart/form-data; charset=utf-8; boundary=x", good},
		{"capitals", "MULTIPART/Form-Data;Boundary=x", good},
		{"no end of the last line", multiType, strings.TrimSuffix(good, "\r\n")},
		{"small letters", multiType, twice("content-type: text/plain; charset=utf-8\r\ncontent-disposition: form-data; name=\"log\"")},
		{".NET", multiType, twice("Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=log")},
		{"Retrofit", multiType, twice(logPart + "\r\nContent-Transfer-Encoding: binary\r\nContent-Type: application/json; charset=UTF-8\r\nContent-Length: 1")},
		{"Retrofit as many use it", multiType, twice(logPart + "\r\nContent-Type: multipart/form-data; charset=utf-8\r\nContent-Length: 1")},
		{"Apache's client", multiType, twice(logPart + "\r\nContent-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit")},
		{"a recording", multiType, "--x\r\nContent-Disposition: form-data; name=\"a\"; filename=\"blob\"\r\nContent-Type: audio/webm;codecs=opus\r\n\r\na\r\n" + good},
		{"no blank", multiType, twice(strings.Replace(logPart, "; ", ";", 1))},
		{"a file before it", multiType, "--x\r\n" + `Content-Disposition: form-data; name="a[]"; filename="C:\x\a b; ü'.png"` + "\r\nContent-Type: image/png\r\n\r\n--\r\n\r\n-x\r\n" + good},
		{"files of .NET and python-requests", multiType, "--x\r\nContent-Disposition: form-data; name=a; filename=a.png; filename*=utf-8''a.png\r\n\r\n\r\n--x\r\n" + `Content-Disposition: form-data; name="b"; filename*=utf-8''%C3%A9` + "\r\n\r\n\r\n" + good},
	} {
		check.Equal(t, bodyOf(t, planOf(t, []string{"log"}, nil), test.contentType, []byte(test.body)).field(0), "=a", "%s", test.about)
	}
	for _, test := range []struct{ about, contentType, body string }{
		{"a file", multiType, twice(logPart + `; filename="a"`)},
		{"a file without a name", multiType, twice(logPart + `; filename=""`)},
		{"a file with only filename*", multiType, twice(logPart + `; filename*=utf-8''a`)},
		{"two values", multiType, strings.Replace(good, "\r\na", "\r\nb", 1)},
		{"a long value", multiType, strings.Replace(good, "\r\na", "\r\n"+strings.Repeat("a", 9999), 1)},
		{"parts after the last", multiType, good + good},
		{"something before the first", multiType, "before\r\n" + good},
		{"something after the last", multiType, good + "a"},
		{"a line before the first", multiType, "\r\n" + good},
		{"no last boundary", multiType, strings.TrimSuffix(good, "--x--\r\n")},
		{"broken off in a header", multiType, good[:20]},
		{"a boundary within a line", multiType, strings.Replace(good, "a\r\n--x\r\n", "a--x--\r\n--x\r\n", 1)},
		{"no empty line before a boundary", multiType, strings.Replace(good, "\r\na\r\n", "\r\n", 1)},
		{"a longer boundary", multiType, strings.Replace(good, "\r\na", "\r\n--xy\r\na", 1)},
		{"blanks after a boundary", multiType, strings.ReplaceAll(good, "--x\r\n", "--x \r\n")},
		{"lines that end in LF", multiType, strings.ReplaceAll(good, "\r\n", "\n")},
		{"a long boundary", "multipart/form-data; boundary=" + strings.Repeat("x", 71), strings.ReplaceAll(good, "--x", "--"+strings.Repeat("x", 71))},
		{"a comma", "multipart/form-data, boundary=x", good},
		{"a blank before =", "multipart/form-data; boundary =x", good},
		{"an encoded boundary", "multipart/form-data; boundary==?utf-8?Q?y?=", strings.ReplaceAll(good, "--x", "--=?utf-8?Q?y?=")}, // Tomcat decodes it
		{"two boundaries", multiType + "; boundary=y", good},
		{"another boundary", "multipart/form-data; boundary=y", good},
		{"no boundary", "multipart/form-data", good},
		{"another charset", multiType + "; charset=utf-16", good},
		{"related", "multipart/related; boundary=x", good},
		{"no header", multiType, twice("")},
		{"no name", multiType, twice("Content-Disposition: form-data")},
		{"an empty name", multiType, twice(`Content-Disposition: form-data; name=""`)},
		{"another disposition", multiType, twice(`Content-Disposition: attachment; name="x"`)},
		{"single quotes", multiType, twice(`Content-Disposition: form-data; name='x'`)},
		{"a backslash", multiType, twice(`Content-Disposition: form-data; name="\x"`)},
		{"an escape", multiType, twice(`Content-Disposition: form-data; name="%6cog"`)},
		{"an encoded word", multiType, twice(`Content-Disposition: form-data; name="=?utf-8?B?bG9n?="`)},
		{"name*", multiType, twice(`Content-Disposition: form-data; name="x"; name*=utf-8''log`)},
		{"two names", multiType, twice(`Content-Disposition: form-data; name="x"; name="log"`)},
		{"a name in a file's", multiType, twice(`Content-Disposition: form-data; name="x"; filename="; name=log"`)},
		{"a quote in a file's", multiType, twice(`Content-Disposition: form-data; name="x"; filename="a\"; log"`)},
		{"two dispositions", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\n" + logPart)},
		{"one in another header", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nX: " + logPart)},
		{"an encoding", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nContent-Transfer-Encoding: base64")},
		{"parts in a part", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nContent-Type: multipart/mixed; boundary=y")},
		{"a form in a part", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nContent-Type: multipart/form-data; boundary=y")},
		{"a charset for all parts", multiType, strings.TrimSuffix(good, "--x--\r\n") + "--x\r\nContent-Disposition: form-data; name=\"_charset_\"\r\n\r\niso-2022-jp\r\n--x--"},
		{"a part of JSON with an escape", multiType, strings.ReplaceAll(twice("Content-Type: application/json\r\n"+logPart), "\r\na\r\n", "\r\n\"\\u0061\"\r\n")},
		{"a part of JSON with blanks", multiType, strings.ReplaceAll(twice("Content-Type: application/json\r\n"+logPart), "\r\na\r\n", "\r\n\"a\" \r\n")},
		{"a type with a name", multiType, twice(logPart + "\r\nContent-Type: text/plain; name=x")},
		{"another header", multiType, twice(logPart + "\r\nX: a")},
		{"a compressed part", multiType, twice("content-encoding: deflate\r\n" + logPart)},
		{"a charset of a part", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nContent-Type: text/plain; charset=utf-16")},
		{"a folded line", multiType, twice("Content-Disposition: form-data;\r\n name=\"x\"")},
		{"a line without a colon", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nx")},
		{"a NUL", multiType, twice("Content-Disposition: form-data; name=\"x\x00\"")},
		{"a carriage return", multiType, twice("Content-Disposition: form-data; name=\"x\r\"")},
		{"a long header", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nX: " + strings.Repeat("x", longestHead))},
		{"pairs", multiType, "x=1"},
		{"JSON", multiType, "[1,2]"},
		{"more than 10,000 parts", multiType, strings.Repeat(strings.TrimSuffix(strings.Replace(good, "log", "x", 2), "--x--\r\n"), mostFields/2+1) + "--x--\r\n"},
		{"a long line", multiType, twice("Content-Disposition: form-data; name=\"x\"\r\nContent-Length: " + strings.Repeat("0", longestLine))},
	} {
		check.Equal(t, bodyOf(t, planOf(t, []string{"log"}, nil), test.contentType, []byte(test.body)).field(0), "unclear", "%s", test.about)
	}
}

func TestItems(t *testing.T) {
	for _, test := range []struct{ path, contentType, body, want string }{
		{"", jsonType, `[1,[2,3],{"a":[]}]`, "3"},
		{"", jsonType, `[]`, "0"},
		{"", jsonType, `{"a":[1,2]}`, "0"},
		{"", jsonType, `{"0":1,"-1":2,"a":3}`, "2"},
		{"", jsonType, `7`, "0"},
		{"", jsonType, ``, "0"},
		{"", "text/plain; charset=utf-7", "", "0"},
		{"", jsonType, " \n", "0"},
		{"", jsonType, "{}\n{}", "unclear"},
		{"", jsonType, `[1,2`, "unclear"},
		{"", formType, "a=1&b=2", "0"},
		{"", "", "\ufeff[1,2]", "2"},
		{"", "text/plain", "[1,2]", "2"},
		{"", "text/xml", "<rows/>", "unclear"},
		{"rows", jsonType, `{"lines":[1],"rows":[1,2,3]}`, "3"},
		{"rows", jsonType, `{"\u0072ows":[1,2],"x":{"rows":[1]}}`, "2"},
		{"rows", jsonType, `{"rows":[1],"rows":[1,2,3]}`, "4"},
		{"rows", jsonType, `{"rows":[1],"Rows":[1,2,3]}`, "4"},
		{"rows", jsonType, `{"rows":{"0":{},"a":{},"1":{}}}`, "3"},
		{"rows", jsonType, `{"rows":{"` + strings.Repeat("a", longestName+1) + `":1,"b":{"c":2}}}`, "2"},
		{"", jsonType, `{"` + strings.Repeat("1", longestName+1) + `":1,"a":2}`, "1"},
		{"rows", jsonType, `{"rows":"x"}`, "0"},
		{"data.rows", jsonType, `{"data":{"rows":[1,2],"x":[]},"rows":[1]}`, "2"},
		{"data.rows", jsonType, `{"data":{"rows":[1]},"data":{"rows":[1,2]}}`, "3"},
		{"data.rows", jsonType, `{"data":[{"rows":[1]}]}`, "0"},
		{"a_b", jsonType, `{"a.b":[1,2],"a":{"b":[1,2,3]}}`, "2"},
		{"orders.#.lines", jsonType, `{"orders":[{"lines":[1,2]},{"lines":[3]},{"x":[4]}]}`, "3"},
		{"orders.#.lines", jsonType, `{"orders":{"0":{"lines":[1,2]},"7":{"lines":[3]}}}`, "3"},
		{"orders.#.lines", jsonType, `{"orders":[{"lines":[1],"lines":[2]}]}`, "2"},
		{"orders.#.lines", jsonType, `{"orders":{"` + strings.Repeat("a", longestName+1) + `":{"lines":{"a":1,"b":2}}}}`, "2"},
		{"#.#", jsonType, `[[[1,2]],[[3],{"0":4}],4]`, "4"},
		{"rows", formType, `{"rows":[1,2,3]}`, "3"},
		{"rows", "", `{"x":"&rows[]=1&rows[]=2&"}`, "2"},
		{"rows", "", `{"rows":[1], "x":"&rows[]=1&rows[]=2&"}`, "3"},
		{"rows", "", `{"&rows[]=1&rows[]":[]}`, "unclear"},
		{"", multiType, "[1,2]", "unclear"},

		{"id", formType, "id=1&id=2&x=3&ideas=4", "2"},
		{"id", formType, "id[]=1&id%5B%5D=2&id[ ]=3&%20id[]=4", "4"},
		{"row", formType, "row[0][a]=1&row[0][b]=2&row[1][a]=3", "3"},
		{"row", formType, "row[a]=1&row[b]=2&row[a]=3&row[]=4", "4"},
		{"row.#.a", formType, "row[0][a]=1&row[0][b]=2&row[1][a]=3&row[2]=4", "2"},
		{"row", formType, "row[0]a=1", "unclear"},
		{"row", formType, "row[=1", "unclear"},
		{"row", formType, "row%00[]=1", "unclear"},
		{"row", formType, "[row]=1", "unclear"},
		{"row", formType, "x[row]=1&y[=2", "0"},
		{"row", formType, "row" + strings.Repeat("[a]", 9) + "=1", "unclear"},
		{"row", formType, strings.Repeat("row[]&", 10001), "unclear"},
		{"row", formType + " x", "x=1", "unclear"},
		{"order.lines", formType, "order[lines][]=1&order[lines][7]=2&order[x]=3&orderlines[]=4", "2"},
		{"line_items", formType, "line.items[]=1&line_items[]=2&line[items][]=3", "2"},
		{"line_items", formType, "line[items=1", "unclear"},
		{"orders.#.lines", formType, "orders[0][lines][]=1&orders[][lines][0]=1&orders[][lines][0]=1&orders[1][lines][0]=1&orders[1][lines][0]=1", "5"},
		{"f", multiType, strings.ReplaceAll(part(logPart), "log", "f[]"), "2"},
		{"f", multiType, strings.ReplaceAll(part(logPart+`; filename="x"`), "log", "f"), "2"},
		{"log", multiType, strings.Repeat(strings.TrimSuffix(part(logPart), "--x--\r\n"), mostFields/2) + "--x--\r\n", "10000"},
		{"f", multiType, strings.TrimSuffix(part(logPart), "--x--\r\n"), "unclear"},
	} {
		check.Equal(t, bodyOf(t, planOf(t, nil, []string{test.path}), test.contentType, []byte(test.body)).count(0), test.want, "%s of %.80s", test.path, test.body)
	}
}

func TestCompressedBodies(t *testing.T) {
	for encoding, want := range map[string]string{"gzip": "unclear", "identity, gzip": "unclear", "Identity": "=a", "": "=a"} {
		r := planOf(t, []string{"log"}, nil).Read()
		r.Body(formType, encoding, -1, strings.NewReader("log=a"))
		check.Equal(t, r.field(0), want, "%q", encoding)
	}
	r := planOf(t, []string{"log"}, nil).Read()
	r.Body(jsonType, "gzip", 0, strings.NewReader(""))
	check.Equal(t, r.field(0), "absent", "no body")
}

func TestReadingFails(t *testing.T) {
	for contentType, begun := range map[string]string{formType: "x=1", jsonType: "[1]", "text/plain": "x", multiType: part(logPart), "": " "} {
		for n := range len(begun) + 1 {
			r := planOf(t, []string{"log"}, nil).Read()
			r.Body(contentType, "", -1, io.MultiReader(strings.NewReader(begun[:n]), iotest.ErrReader(errors.New("broken"))))
			check.Equal(t, r.field(0), "unclear", "%s after %d bytes", contentType, n)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	for _, name := range []string{"", "[]", "[a]", "a[", "a]", "a[b", "a[b]c", "_", "1", "1[log]", "log[]", "log[0]", "a\x00", "a\xff", strings.Repeat("a", 129), "a[1][2][3][4][5][6][7][8][b]"} {
		_, err := new(Plan).Field(name)
		check.That(t, err != nil && strings.Contains(err.Error(), strconv.Quote(name)), "field %q: got %v, want an error with it", name, err)
	}
	for path, want := range map[string]string{
		"rows.*": "data.rows", "a..b": "data.rows", ".a": "data.rows", "a.": "data.rows", "@reverse": "data.rows", "a|b": "data.rows", "friends.#(age>1)": "data.rows", "{a,b}": "data.rows",
		"rows[]": "data.rows", "order[lines]": "data.rows", "_": "data.rows", "a\xff": "data.rows", "a\x00b": "data.rows",
		"rows.0": "# for each", "1.lines": "# for each", "orders.-7.lines": "# for each", `a\.b`: "data.rows",
	} {
		_, err := new(Plan).Array(path)
		check.That(t, err != nil && strings.Contains(err.Error(), strconv.Quote(path)) && strings.Contains(err.Error(), want), "path %q: got %v, want an error with it and %q", path, err, want)
	}
	p := new(Plan)
	for i := range mostWanted {
		if f, err := p.Field(fmt.Sprintf("field%d", i)); err != nil || int(f) != i {
			t.Fatal(f, err)
		}
	}
	if f, err := p.Field("FIELD-0"); err != nil || f != 0 {
		t.Errorf("got field %d, %v, want the same as before", f, err)
	}
	if _, err := p.Array(""); err == nil {
		t.Error("got no error for the 64th")
	}
	check.Equal(t, bodyOf(t, p, formType, []byte("field62=a")).field(62), "=a", "of the last field")
	r := bodyOf(t, new(Plan), jsonType, []byte(`{"a":[1]}`))
	check.That(t, !r.Carries(), "a plan without fields carries one")
}

var dashes = strings.Repeat("-", 70)

// hostile are units of bodies that are dear to read.
var hostile = []struct{ about, contentType, begin, unit, end string }{
	{"brackets", formType, "rows", "[]", ""},
	{"names", formType, "", "log[x][y[", ""},
	{"names that are not UTF-8", formType, "", strings.Repeat("\xff", 128) + "&", ""},
	{"pairs", formType, "", "&", ""},
	{"semicolons", formType, "", ";", ""},
	{"fields", formType, "", "log=a&", ""},
	{"arrays", formType, "", "rows[%d]=1&", ""},
	{"escapes", formType, "", "%6c", ""},
	{"blanks", formType, "", "+", ""},
	{"letters", formType, "log=", "a", ""},
	{"blanks before", "", "", " ", "log=a"},
	{"boundaries", "multipart/form-data; boundary=" + dashes, "--" + dashes + "\r\n" + logPart + "\r\n\r\n", "\r\n-" + dashes, "\r\n--" + dashes + "--"},
	{"beginnings", multiType, "--x\r\n" + logPart + "\r\n\r\n", "\r\n--", "\r\n--x--"},
	{"a long part", multiType, "--x\r\n" + logPart + "\r\n\r\n", "a", "\r\n--x--"},
	{"parts", multiType, "", "--x\r\n" + logPart + "\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\r\n", "--x--"},
	{"headers", multiType, "", "--x\r\n" + logPart + "\r\nX: " + strings.Repeat("charset=utf-8;", 90) + "\r\n\r\n\r\n", "--x--"},
	{"deep", jsonType, "", "[", ""},
	{"elements", jsonType, "[", "1,", "1]"},
	{"objects", jsonType, "[", `{"log":"a"},`, "1]"},
	{"names", jsonType, "{", `"l":1,`, `"rows":[]}`},
	{"escaped names", jsonType, "{", `"\u006c":1,`, `"rows":[]}`},
	{"long names", jsonType, "{", `"` + strings.Repeat("_", 900) + `":1,`, `"rows":[]}`},
	{"a string", jsonType, `["`, "a", `"]`},
	{"backslashes", jsonType, `["`, strings.Repeat("a", 20) + `\"`, `"]`},
	{"documents", jsonType, "", `{"rows":[]}`, ""},
	{"numbers", jsonType, "[", `{"x":{"a":1,"b":[2]}},`, "0]"},
	{"words", "text/plain", "", "log ", ""},
	{"equals", "text/plain", "", "a=", ""},
	{"percents", "text/plain", "", "%", ""},
	{"XML", "text/xml", "", "<a:lo>b</a>", ""},
	{"foreign letters", formType, "", "%C3%A4=%C3%A4&", ""},
}

// build makes a body of so many bytes.
func build(begin, unit, end string, size int) []byte {
	data := make([]byte, 0, size+len(unit))
	data = append(data, begin...)
	for i := 0; len(data) < size-len(end); i++ {
		if strings.Contains(unit, "%d") {
			data = fmt.Appendf(data, unit, i)
		} else {
			data = append(data, unit...)
		}
	}
	return append(data, end...)
}

var everything = [2][]string{{"log", "pwd", "user[login]", "rows[][x]"}, {"", "rows", "data.rows", "orders.#.lines", "#.x"}}

// TestMemory counts what is allocated for bodies of 4 MiB: little, and not for each byte.
func TestMemory(t *testing.T) {
	p := planOf(t, everything[0], everything[1])
	for _, h := range hostile {
		data := build(h.begin, h.unit, h.end, 4<<20)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		bodyOf(t, p, h.contentType, data)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
			t.Errorf("%s in %s: got %d KiB allocated, want at most 1 MiB", h.about, h.contentType, got>>10)
		}
		if got := after.Mallocs - before.Mallocs; got > mostFields+1000 {
			t.Errorf("%s in %s: got %d allocations, want about one for each field that may be read", h.about, h.contentType, got)
		}
	}
}

// FuzzBody holds readings to Go's own readers, and checks that it does not matter in which
// pieces a body comes.
func FuzzBody(f *testing.F) {
	for _, h := range hostile {
		f.Add(h.contentType, build(h.begin, h.unit, h.end, 3000)) // more than is read ahead of a part
	}
	for _, contentType := range []string{jsonType, formType, "", "text/plain"} {
		for _, data := range []string{`{"rows":[1,{"rows":[]}],"log":"a"}`, `{"l\u006fg":1,"user":{"login":"\ud83d\ude00"}}`, "rows[]=1&rows[x]=%zz", "log=%61;log=b", "log=a&user[login]=b", "<log>", "a%6c=log="} {
			f.Add(contentType, []byte(data))
		}
	}
	f.Fuzz(func(t *testing.T, contentType string, data []byte) {
		p := planOf(t, everything[0], everything[1])
		r := bodyOf(t, p, contentType, data)
		pieces := p.Read()
		pieces.Body(contentType, "", -1, iotest.OneByteReader(bytes.NewReader(data)))
		check.That(t, r.unclear == pieces.unclear && r.found&^r.unclear == pieces.found&^r.unclear, "got %b, %b at once, and %b, %b in pieces", r.found, r.unclear, pieces.found, pieces.unclear)
		for i := range p.wanted {
			if r.field(i) != pieces.field(i) || r.count(i) != pieces.count(i) {
				t.Errorf("got %s, %s at once, and %s, %s in pieces", r.field(i), r.count(i), pieces.field(i), pieces.count(i))
			}
		}
		see := func(i int, value string) {
			if got := r.field(i); got != "unclear" && got != "="+value {
				t.Errorf("%s of %q: got %q, and Go sees %q", everything[0][i], data, got, value)
			}
		}
		if form, err := url.ParseQuery(string(data)); err == nil && contentType == formType {
			for i, name := range everything[0][:3] {
				for _, value := range form[name] {
					see(i, value)
				}
			}
		}
		if boundary, ok := strings.CutPrefix(contentType, "multipart/form-data; boundary="); ok {
			if form, err := multipart.NewReader(bytes.NewReader(data), boundary).ReadForm(1 << 20); err == nil {
				for i, name := range everything[0][:3] {
					for _, value := range form.Value[name] {
						see(i, value)
					}
				}
			}
		}
		var value struct {
			Log, Pwd *string
			User     struct{ Login *string }
			Rows     []any
		}
		if strings.HasPrefix(contentType, "multipart") || !strings.HasPrefix(strings.TrimLeft(string(data), " \t\r\n"), "{") || json.Unmarshal(data, &value) != nil {
			return
		}
		for i, value := range []*string{value.Log, value.Pwd, value.User.Login} {
			if value != nil && !strings.Contains(*value, "\ufffd") {
				see(i, *value)
			}
		}
		if n, sure := r.Items(5); sure && n < len(value.Rows) {
			t.Errorf("rows of %q: got %d, and Go sees %d", data, n, len(value.Rows))
		}
	})
}
