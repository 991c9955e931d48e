package limit_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// login returns a POST request with a form.
func login(fields ...string) *http.Request {
	form := make(url.Values)
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	r := httptest.NewRequest("POST", servertest.Site0+"/wp-login.php", strings.NewReader(form.Encode()))
	r.RemoteAddr = servertest.Someone
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

func basic(credentials string) *http.Request {
	return servertest.Request(servertest.Someone, servertest.Site0, "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(credentials)))
}

func TestAKeyOfAnAccountIsFoldedAsItsZoneSays(t *testing.T) {
	for _, test := range []struct {
		lines string
		r     *http.Request
		want  string
	}{
		{"key field log", login("log", " ÁdMin "), digestOf("ádmin")},
		{"key field log", login("log", "a\u0301dmin"), digestOf("ádmin")},
		{"key field log plain", login("log", "\u3164a\u200bdmin\u200b\u00ad\u2800\u034f\ufeff\U0001d159"), "a\u200bdmin"}, // Laravel trims what is invisible
		{"key field log plain", login("log", "\u3164 "), "\u1160"},                                                        // some call themselves so
		{"key field log plain", login("log", "ΓΗ\u0342"), "γῆ"},                                                           // no capital has this accent in one letter
		{"key field log fold wordpress", login("log", " ÁdMin "), digestOf("admin")},
		{"key field log fold wordpress plain", login("log", "<b>admin</b>"), "@odd"},
		{"key field log fold wordpress plain", login("log", "admin&x1;"), "@odd"},
		{"key field log fold wordpress plain", login("log", "%41admin"), "@odd"},
		{"key field log fold wordpress plain", login("log", "\xe1dmin"), "@odd"}, // not UTF-8
		{"key field log plain", login("log", "admin\x00x"), "@odd"},              // which PHP's drivers of PostgreSQL cut
		{"key field log plain", login("log", "admin\x00"), "admin"},
		{"key field mail fold email plain", login("mail", "a\x00b@example.com"), "@odd"},
		{"key field log", login("log", strings.Repeat("\ufdfa", 300)), "@odd"}, // which take milliseconds in NFKC
		{"key field token", login("token", strings.Repeat("a", 999)), digestOf(strings.Repeat("a", 999))},
		{"key basic_user plain", basic("admin\x00x:pw"), "@odd"},
		{"key field log fold wordpress plain", login("log", "иван"), "иван"},
		{"key field log fold wordpress plain", login("log", "Мария"), "мария"},
		{"key field log fold wordpress", login("log", " "), ""},
		{"key field log fold wordpress missing share", login("log", "%4á"), "@odd"},
		{"key field log fold wordpress missing share", login("log", strings.Repeat("b", 400)), "@odd"},
		{"key field log fold wordpress", login("log", "nobody", "log", "ádmin"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/?log=%2BAGE-dmin", "Content-Type", "text/plain; charset=utf-7"), "@unclear"}, // Django
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/?log=admin", "Content-Type", "text/plain"), "admin"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/?log=admin", "Content-Type", "text/plain", "Content-Type", "text/plain; charset=utf-7"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/login;x=1&log=%2561dmin"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/login;log=%2561dmin"), "@unclear"}, // Fastify 4
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/x%26log=a"), "@unclear"},           // rules put paths into queries
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/x&y=1&log=a/b?x=1"), "@unclear"},   // or a part of them
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/x&log=b?log=a"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/log=a"), "@unclear"}, // or begin them with the path
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/login/x=1/l%256Fg=a&x=1"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/log/x=1/log;x/log"), ""},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/R&%25/a&[b/x;log"), ""}, // of which no piece is a pair
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/x&lo&g?log=a"), "a"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/login%3Flog=a"), "@unclear"}, // CodeIgniter 3, behind such rules
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/x&y%3Flog=b?log=a"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/lo%3Fg?log=a"), "a"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/?/login?log=a&x=1"), "a"}, // CodeIgniter 3
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/?log=b&/login?log=a"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/login;log=a?log=b"), "@unclear"},
		{"key field log plain", servertest.Request(servertest.Someone, servertest.Site0+"/login%3Blog=a"), "@unclear"}, // Rack 2, behind rules
		{"key field user[login] fold wordpress client_ip plain", login("user[login]", "Jörg"), "jorg/203.0.113.7"},
		{"key field mail fold email plain", login("mail", " A.B+C@Example.COM "), "ab@example.com"},
		{"key field mail fold email plain", login("mail", "a.b-1@gmail.com"), "ab-1@gmail.com"},
		{"key field mail fold email plain", login("mail", "a.b-1-2@Yahoo.de"), "ab@yahoo.de"},
		{"key field mail fold email plain", login("mail", "a-1@ymail.com"), "a@ymail.com"},
		{"key field mail fold email plain", login("mail", "a.b-1+c"), "a.b-1+c"},
		{"key field mail fold email plain", login("mail", "a.b@googlemail.com"), "ab@gmail.com"},
		{"key field mail fold email plain", login("mail", "a@Ya.ru"), "a@yandex.ru"},
		{"key field mail fold email plain", login("mail", "a@yandex.kz"), "a@yandex.ru"},
		{"key field mail plain", login("mail", " A.B+C@Example.COM "), "a.b+c@example.com"},

		{"key basic_user", basic("Admin:pw"), digestOf("admin")},
		{"key basic_user plain", basic(" Ádmin :p:w"), "ádmin"},
		{"key basic_user fold wordpress plain", basic("Ádmin:pw"), "admin"},
		{"key basic_user", servertest.Request(servertest.Someone, servertest.Site0), "@client_ip/203.0.113.7"},
		{"key basic_user missing share", servertest.Request(servertest.Someone, servertest.Site0), "@client_ip/203.0.113.7"},
		{"key basic_user missing share", basic("admin"), "@unclear"},
		{"key basic_user missing share", servertest.Request(servertest.Someone, servertest.Site0, "Authorization", "Basic YTpi", "Authorization", "Basic YTpi"), "@unclear"},
		{"key basic_user fold wordpress missing share", basic("&á:pw"), "@odd"},
		{"key client_ip basic_user plain", basic("a/b:pw"), "203.0.113.7/a%2Fb"},
	} {
		check.Equal(t, keyOf(t, test.lines, test.r), test.want, "%q: key", test.lines)
	}
}

func TestOverridesMatchFoldedNames(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone account {
				key field log fold wordpress
				limit 100 1/d
				override Ádmin deny
				override monitor unlimited
			}
			zone plain {
				key field log
				limit 100 1/d
				override Root deny
			}
			zone members {
				field member
				key field member fold wordpress unlisted refuse
				limit 100 1/d
				override ann 9 1/d
			}
			zone users {
				key basic_user
				limit 100 1/d
				override Eve deny
			}
		}
		respond ok
	}`)
	for _, test := range []struct {
		r    *http.Request
		want int
	}{
		{login("log", "admin"), 429},
		{login("log", "ADMÍN"), 429},
		{login("log", "Monitor"), 200},
		{login("log", "mónitor"), 200},
		{login("log", "ROOT"), 429},
		{login("log", "root2"), 200},
		{basic("EVE:x"), 429},
		{basic("eva:x"), 200},
		{login("log", "x", "log", "admin"), 429}, // of which PHP reads the last
		{login("log", "<b>admin"), 429},
		{basic("eve"), 429},
		{login("member", "Ann"), 200},
		{login("member", "x"), 429},
		{login("member", "x", "member", "y"), 429},
	} {
		check.Equal(t, s.Do(test.r).Code, test.want, "%v", test.r.URL)
	}
}
