package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// zipped returns text compressed by gzip.
func zipped(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	check.Must(w.Write([]byte(text)))(t)
	check.OK(t, w.Close())
	return out.String()
}

// lines returns a combined log with a request a second, whose paths are numbered.
func lines(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		b.WriteString(combinedLine(noon.Add(time.Duration(i)*time.Second), "192.0.2.1", "/"+string(rune('a'+i%26))) + "\n")
	}
	return b.String()
}

func TestRotatedLogsAreReadInTheOrderOfTime(t *testing.T) {
	unpacker, err := zstd.NewWriter(nil)
	check.OK(t, err)
	packed := string(unpacker.EncodeAll([]byte(lines(0, 5)), nil))
	names := []string{written(t, "access.log", lines(10, 15)), written(t, "access.log.1", lines(5, 10)), written(t, "access.log.2.zst", packed), written(t, "empty.log", "")}
	names = append(names, written(t, "access.log.3.gz", zipped(t, lines(15, 20))))
	got, stats, err := readAll(t, Options{}, names...)
	check.Assume(t, err == nil && len(got) == 20, "got %d requests, %+v and %v, want 20", len(got), stats, err)
	check.That(t, slices.IsSortedFunc(got, func(a, b seen) int { return strings.Compare(a.at, b.at) }), "got %v, want them in order", got)
}

// TestLateLinesAreSorted: a request that lasted for hours, files that were joined in a wrong order,
// and a log that was shuffled and fits into no memory.
func TestLateLinesAreSorted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var inOrder, shuffled []string
	for i := range 120_000 {
		shuffled = append(shuffled, fmt.Sprintf(`192.0.2.1 - - [%s] "GET /%d HTTP/1.1" 200 1`, noon.Add(time.Duration(i)*time.Second).Format(commonTime), i))
	}
	rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for i := range 1000 {
		inOrder = append(inOrder, caddyLine(noon.Add(time.Duration(i)*time.Minute), 0, "192.0.2.1", fmt.Sprint("/", i)))
	}
	long := append(slices.Clone(inOrder), caddyLine(noon.Add(1000*time.Minute), 1000*time.Minute, "192.0.2.1", "/long"))
	backwards := slices.Clone(inOrder)
	slices.Reverse(backwards)
	for name, log := range map[string][]string{
		"long": long, "joined": slices.Concat(inOrder[700:], inOrder[:300], inOrder[300:700]), "backwards": backwards, "shuffled": shuffled,
	} {
		t.Setenv("TMPDIR", t.TempDir())
		r := check.Must(Open([]string{"-"}, Options{Stdin: strings.NewReader(strings.Join(log, "\n"))}))(t)
		n, seen, last := 0, make(map[string]bool), time.Time{}
		for req, err := range r.Requests {
			check.Assume(t, err == nil && !req.At.Before(last) && req.Agent != "" == (name != "shuffled"), "%s: got %v and %+v after %v", name, err, req, last)
			n, last, seen[req.URI] = n+1, req.At, true
		}
		if stats := r.Stats(); n != len(log) || len(seen) != n || stats.Lines != int64(n) || stats.From != noon || stats.To != last {
			t.Errorf("%s: got %d requests, %d of them different, and %+v, want %d", name, n, len(seen), stats, len(log))
		}
		check.Equal(t, len(r.sorter.files) > 0, name == "shuffled", "%s: temporary files", name)
		r.Close()
		left, err := os.ReadDir(os.TempDir())
		check.That(t, err == nil && len(left) == 0, "%s: got %v, %v, want no temporary file left", name, left, err)
	}
}

// TestWhatIsSpilledStaysAsItIs: a request that was in a file is the same.
func TestWhatIsSpilledStaysAsItIs(t *testing.T) {
	line := strings.Replace(caddyLine(noon, time.Second, "b5d4045c", "/a?b"), `"size":`, `"throttle":{"zone":"a","unlogged":3},"in_flight":{"decision":"refused"},"size":`, 1)
	var s sorter
	defer s.close()
	want, p := new(Request), parser{latest: noon.Add(aDay)}
	if v, why := p.parse(want, line); v != request {
		t.Fatal(why)
	}
	want.Named, want.Mixed = want.Client, true
	check.OK(t, errors.Join(s.add(want), s.flush()))
	for got, err := range s.all {
		check.OK(t, err)
		got.length, got.fraction = want.length, want.fraction
		check.That(t, got.At.Equal(want.At), "got %v, want %v", got.At, want.At)
		got.At = want.At
		check.That(t, *got == *want, "got %+v, want %+v", got, want)
	}
}

// TestTheSameFileIsReadOnce, whatever its name.
func TestTheSameFileIsReadOnce(t *testing.T) {
	name := written(t, "access.log", lines(0, 5))
	check.OK(t, os.Symlink(name, name+".1"))
	got, _, err := readAll(t, Options{}, name, name+".1", name)
	check.That(t, err == nil && len(got) == 5, "got %d requests and %v, want 5", len(got), err)
}

// TestFilesOfOtherMachinesAreRead: with a mark of their encoding, NULs where a log was cut off, and
// other ends of lines.
func TestFilesOfOtherMachinesAreRead(t *testing.T) {
	text := lines(0, 5)
	for name, text := range map[string]string{
		"mark": "\ufeff" + text, "NULs": strings.Repeat("\x00", 5000) + text, "CRLF": strings.ReplaceAll(text, "\n", "\r\n"),
	} {
		got, stats, err := readAll(t, Options{}, written(t, "access.log", text))
		check.That(t, err == nil && len(got) == 5 && got[0].client == "192.0.2.1" && stats.Unreadable == 0, "%s: got %+v, %+v and %v, want five requests", name, got, stats, err)
	}
}

func TestAnUnreadableLineIsCountedAndShown(t *testing.T) {
	huge := `{"level":"info","ts":1,"request":{"uri":"` + strings.Repeat("x", 10<<20) + `"}}`
	text := lines(0, 2) + "nonsense \x1b[31m\n" + huge + "\n" + `{"request":` + "\n" + `{"logger":"http.log.access","request":{"host":"x"}}` + "\n" +
		combinedLine(time.Unix(3, 0), "192.0.2.1", "/") + "\n" + combinedLine(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), "192.0.2.1", "/") + "\n" + lines(2, 3)
	name := written(t, "access.log", text)
	_, stats, err := readAll(t, Options{}, name)
	check.Assume(t, err == nil && stats.Requests == 3 && stats.Unreadable == 6 && len(stats.Problems) == mostProblems, "got %+v and %v, want 3 requests and 6 unreadable lines", stats, err)
	for i, want := range []string{`:3: unknown format: name its fields with --fields, in the spelling of Apache's LogFormat or nginx's log_format: nonsense \x1b[31m`, ":4: a line of 10485804 bytes", ":5: no valid JSON", ":6: no time", ":7: implausible time 1970-01-01T00:00:03Z"} {
		check.Contains(t, stats.Problems[i], want)
	}
}

func TestWhatCannotBeReadIsNamed(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{
		filepath.Join(dir, "absent.log"): "no such file", dir: "directory",
		written(t, "a.bz2", "BZh91AY"): "bzip2", written(t, "a.xz", "\xfd7zXZ\x00"): "xz", written(t, "a.gz", "\x1f\x8bnonsense"): "gzip",
		written(t, "empty.log", ""): "empty", written(t, "binary.log", "\x00\x01\xff\n\x00"): "binary", written(t, "blank.log", "\n\n"): "none of its 2 lines",
	} {
		_, _, err := readAll(t, Options{}, name)
		check.That(t, err != nil && strings.Contains(err.Error(), want) && strings.Contains(err.Error(), filepath.Base(name)), "%s: got %v, want an error about %s", name, err, want)
	}
}

func TestOfATruncatedGzipThereIsWhatCouldBeRead(t *testing.T) {
	whole := zipped(t, lines(0, 5000))
	name := written(t, "access.log.gz", whole[:len(whole)*3/4])
	_, stats, err := readAll(t, Options{}, name)
	check.Assume(t, err == nil && stats.Requests != 0 && stats.Requests != 5000 && stats.Broken != nil, "got %+v and %v, want some requests and an error", stats, err)
	check.Is(t, stats.Broken, io.ErrUnexpectedEOF)
}
