package tune_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// benchmarkLines is how many lines the log of a benchmark has.
const benchmarkLines = 20_000

func BenchmarkReplay(b *testing.B) {
	config := writeFile(b, "Caddyfile", replaySite)
	for _, format := range []string{"caddy", "combined"} {
		log := writeFile(b, "access.log", randomLog(format))
		for limits, flags := range map[string][]string{"key": {"--limit", "60 1/s"}, "config": {"--config", config}} {
			b.Run("limits="+limits+"/format="+format, func(b *testing.B) {
				n := 0
				for ; n < b.N; n += benchmarkLines {
					ran(b, append([]string{"replay", log}, flags...)...)
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "lines/s")
			})
		}
	}
}

// replaySite is a Caddyfile with a site as many have it.
const replaySite = `
example.com {
	log
	throttle {
		exempt path *.css *.js *.png
		zone pages {
			key client_ip
			limit 60 1/s
		}
		zone login {
			match path /wp-login.php*
			key client_ip
			limit 5 5/h
			settle status 401 403 1 after
		}
	}
	encode zstd gzip
	php_fastcgi localhost:9000
	file_server
}
`

// randomLog returns a log of many clients.
func randomLog(format string) string {
	rng := rand.New(rand.NewPCG(1, 1))
	var log strings.Builder
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for range benchmarkLines {
		at = at.Add(time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond)))
		ip := fmt.Sprintf("203.0.%d.%d", rng.IntN(40), rng.IntN(250))
		uri := fmt.Sprintf("/index.php?page=%d", rng.IntN(1000))
		if format == "combined" {
			fmt.Fprintf(&log, "%s %s - - [%s] \"GET %s HTTP/1.1\" 200 203023 \"http://example.com/presentations/\" \"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/32.0.1700.77 Safari/537.36\"\n",
				"example.com", ip, at.Format("02/Jan/2006:15:04:05 -0700"), uri)
			continue
		}
		fmt.Fprintf(&log, `{"level":"info","ts":%d.%06d,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":%q,"remote_port":"4711","client_ip":%q,"proto":"HTTP/2.0","method":"GET","host":"example.com","uri":%q,"headers":{"User-Agent":["Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"],"Accept":["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],"Accept-Language":["en-US,en;q=0.5"],"Accept-Encoding":["gzip, deflate, br, zstd"],"Cookie":["REDACTED"],"Sec-Fetch-Mode":["navigate"],"Upgrade-Insecure-Requests":["1"]},"tls":{"resumed":false,"version":772,"cipher_suite":4865,"proto":"h2","server_name":"example.com","ech":false}},"bytes_read":0,"user_id":"","duration":%.9f,"size":5123,"status":200,"resp_headers":{"Server":["Caddy"],"Alt-Svc":["h3=\":443\"; ma=2592000"],"Content-Type":["text/html; charset=UTF-8"]}}`+"\n",
			at.Unix(), at.Nanosecond()/1000, ip, ip, uri, rng.ExpFloat64()/10)
	}
	return log.String()
}
