package form

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkBody reads forms and documents as they are sent, and hostile ones. It also reports
// processor time, which others on the machine do not change much.
func BenchmarkBody(b *testing.B) {
	p := planOf(b, everything[0], everything[1])
	run := func(name, contentType string, data []byte) {
		b.Run(fmt.Sprintf("%s/KiB=%d", name, len(data)>>10), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := processorTime(b)
			for b.Loop() {
				bodyOf(b, p, contentType, data)
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
	run("login", formType, []byte("log=admin&pwd=secret&rememberme=forever&wp-submit=Log+In&redirect_to=%2Fwp-admin%2F&testcookie=1"))
	run("menu", formType, []byte(pairsOf(menu, 300)))
	run("upload", multiType, build("--x\r\n"+logPart+"; filename=\"a\"\r\n\r\n", "a", "\r\n--x--\r\n", 1<<20))
	run("rows", jsonType, build(`{"rows":[`, `{"id":1,"name":"x","tags":[1,2]},`, `{}]}`, 1<<20))
	for _, size := range []int{64 << 10, 8 << 20} { // a page that is saved, and the largest that is not a file
		run("page", formType, build("log=admin&text=", "An+honest+word%2C+", "&pwd=secret", size))
		run("page-in-percents", formType, build("log=admin&text=", "%E5%B1%B1", "&pwd=secret", size))
		run("page-in-parts", multiType, build("--x\r\n"+logPart+"\r\n\r\nadmin\r\n--x\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\n", "An honest word,\r\n", "\r\n--x--\r\n", size))
		run("document", jsonType, build(`{"log":"admin","text":"`, `An honest \"word\",`, `"}`, size))
		run("xml", "application/xml", build("<a>", "<b>An honest word</b>", "</a>", size))
		run("uncertain", "text/plain", build("", "An honest word, ", "", size))
	}
	for _, size := range []int{1 << 20, 64 << 20} {
		for _, h := range hostile {
			kind, _, _ := strings.Cut(h.contentType, ";")
			run("hostile/"+strings.ReplaceAll(h.about, " ", "-")+"/"+kind[strings.IndexByte(kind, '/')+1:], h.contentType, build(h.begin, h.unit, h.end, size))
		}
	}
}

// processorTime returns what this thread has used so far.
func processorTime(b *testing.B) time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	if err := syscall.Getrusage(thread, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
