package docs

import (
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// root is the top of the repository, seen from here.
const root = ".."

// A page is a Markdown file.
type page struct {
	name   string // from the top of the repository
	text   string
	fences []fence
	prose  []string // the lines outside of fences, numbered from 1 as in the file
}

// A fence is a block of code.
type fence struct {
	line     int
	language string
	text     string
}

// pages returns all pages that users and contributors read.
func pages(t *testing.T) (all []*page) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "*.md"))
	check.OK(t, err)
	names = append(names, filepath.Join(root, "bench", "README.md"), filepath.Join(root, "leakybucket", "README.md"))
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	})
	check.OK(t, err)
	for _, name := range names {
		raw := check.Must(os.ReadFile(name))(t)
		relative := check.Must(filepath.Rel(root, name))(t)
		all = append(all, parsePage(t, filepath.ToSlash(relative), string(raw)))
	}
	check.Assume(t, len(all) >= 2, "got %d pages, want more", len(all))
	return all
}

var fenceLine = regexp.MustCompile("^( *)```([a-z]*)\\s*$")

func parsePage(t *testing.T, name, text string) *page {
	t.Helper()
	p := &page{name: name, text: text, prose: []string{""}}
	var open *fence
	indent := ""
	for n, line := range strings.Split(text, "\n") {
		found := fenceLine.FindStringSubmatch(line)
		switch {
		case found != nil && open == nil:
			open, indent = &fence{line: n + 1, language: found[2]}, found[1]
			line = ""
		case found != nil:
			p.fences = append(p.fences, *open)
			open, line = nil, ""
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
			line = ""
		}
		p.prose = append(p.prose, line)
	}
	if open != nil {
		t.Errorf("%s:%d: the block of code has no end", name, open.line)
	}
	return p
}

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	heading  = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// fencesOf goes through the blocks of code in a language, on all pages.
func fencesOf(t *testing.T, language string) iter.Seq2[*page, fence] {
	t.Helper()
	return func(yield func(*page, fence) bool) {
		for _, p := range pages(t) {
			for _, f := range p.fences {
				if f.language == language && !yield(p, f) {
					return
				}
			}
		}
	}
}

// links returns the targets of all links and pictures, by line.
func (p *page) links() map[int][]string {
	targets := make(map[int][]string)
	for n, line := range p.prose {
		for _, found := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
			targets[n] = append(targets[n], found[1]+found[2])
		}
	}
	return targets
}

// anchors returns the anchors that GitHub gives the headings.
func (p *page) anchors() (anchors []string) {
	for _, line := range p.prose {
		found := heading.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		var slug strings.Builder
		for _, r := range strings.ToLower(linkText.ReplaceAllString(found[1], "$1")) {
			switch {
			case r == ' ':
				slug.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				slug.WriteRune(r)
			}
		}
		anchors = append(anchors, slug.String())
	}
	return anchors
}

// resolve returns the file and the anchor that a link leads to. The file is empty for
// links out of the repository.
func (p *page) resolve(target string) (file, anchor string) {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return "", ""
	}
	file, anchor, _ = strings.Cut(target, "#")
	if file == "" {
		return p.name, anchor
	}
	return path.Join(path.Dir(p.name), file), anchor
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	all := pages(t)
	for _, p := range all {
		for line, targets := range p.links() {
			for _, target := range targets {
				file, anchor := p.resolve(target)
				if file == "" {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("%s:%d: got a link to %s, which does not exist", p.name, line, target)
					continue
				}
				i := slices.IndexFunc(all, func(p *page) bool { return p.name == file })
				if anchor != "" && (i < 0 || !slices.Contains(all[i].anchors(), anchor)) {
					t.Errorf("%s:%d: got a link to %s, which has no heading of that name", p.name, line, target)
				}
			}
		}
	}
}

// A command that runs no test says that all is well.
func TestEveryCommandNamesATest(t *testing.T) {
	var code strings.Builder
	check.OK(t, filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, "_test.go") {
			code.Write(check.Must(os.ReadFile(name))(t))
		}
		return err
	}))
	option := regexp.MustCompile(`-(run|bench) '?([A-Z][\w|]*)`)
	for _, p := range pages(t) {
		for _, found := range option.FindAllStringSubmatch(p.text, -1) {
			for name := range strings.SplitSeq(found[2], "|") {
				kind := map[string]string{"run": "Test", "bench": "Benchmark"}[found[1]]
				named := regexp.MustCompile(`func ` + kind + `\w*` + strings.TrimPrefix(name, kind)).MatchString(code.String())
				check.That(t, named, "%s: got the command %q, and nothing named %s", p.name, found[0], name)
			}
		}
	}
}

func TestNoPageHasTwoHeadingsOfOneAnchor(t *testing.T) {
	for _, p := range pages(t) {
		seen := make(map[string]bool)
		for _, anchor := range p.anchors() {
			if seen[anchor] && p.name != "CHANGELOG.md" {
				t.Errorf("%s: two headings have the anchor #%s", p.name, anchor)
			}
			seen[anchor] = true
		}
	}
}

func TestEveryPageIsReachedFromTheReadme(t *testing.T) {
	all := pages(t)
	reached := map[string]bool{"README.md": true, "docs/README.md": true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !reached[p.name] {
				continue
			}
			for _, targets := range p.links() {
				for _, target := range targets {
					if file, _ := p.resolve(target); file != "" && !reached[file] {
						reached[file], grown = true, true
					}
				}
			}
		}
	}
	for _, p := range all {
		check.That(t, reached[p.name], "no link leads to %s from README.md or docs/README.md", p.name)
	}
}

func TestEveryPictureIsShown(t *testing.T) {
	pictures, err := filepath.Glob("pictures/*.svg")
	check.Assume(t, err == nil && len(pictures) != 0, "got %d pictures, %v", len(pictures), err)
	shown := make(map[string]bool)
	for _, p := range pages(t) {
		for _, targets := range p.links() {
			for _, target := range targets {
				file, _ := p.resolve(target)
				shown[file] = true
			}
		}
	}
	for _, picture := range pictures {
		check.That(t, shown["docs/"+filepath.ToSlash(picture)], "no page shows docs/%s", picture)
	}
}

// wordsOf returns how many words some pages have.
func wordsOf(t *testing.T, names ...string) (n int) {
	t.Helper()
	for _, name := range names {
		n += len(strings.Fields(string(check.Must(os.ReadFile(filepath.Join(root, name)))(t))))
	}
	return n
}

func TestTheReadmeIsShort(t *testing.T) {
	n := wordsOf(t, "README.md")
	check.That(t, n >= 600 && n <= 800, "got %d words, want 600 to 800", n)
}

// TestTheDocumentationGrowsNoMore: what is added must be cut elsewhere. Package house counts the words.
func TestTheDocumentationGrowsNoMore(t *testing.T) {
	n := 0
	for _, p := range pages(t) {
		if strings.HasPrefix(p.name, "docs/") {
			n++
		}
	}
	check.That(t, n <= 24, "got %d pages, want at most 24", n)
}

// TestTheWayOfAnOwnerIsShort: these four pages are all that the owner of a WordPress has
// to read.
func TestTheWayOfAnOwnerIsShort(t *testing.T) {
	n := wordsOf(t, "README.md", "docs/getting-started.md", "docs/recipes/wordpress.md", "docs/tuning.md")
	check.That(t, n <= 4_700, "got %d words, want at most 4700", n)
}

// Passport takes any scheme for Basic that has it in its name.
func TestNoSchemeGetsAroundTheLimitsOfBasic(t *testing.T) {
	text := string(check.Must(os.ReadFile("../README.md"))(t)) + string(check.Must(os.ReadFile("recipes/wordpress.md"))(t))
	for _, line := range regexp.MustCompile(`header_regexp Authorization (.+)`).FindAllStringSubmatch(text, -1) {
		matches := regexp.MustCompile(line[1]).MatchString
		check.That(t, matches("Basic YTpi") && matches("XBASIC YTpi") && matches("X\tBasic YTpi") && !matches("Bearer basic"), "%s", line[0])
	}
}

// TestNobodyIsRefusedForMissingFilesOfPages, which Chromium asks for again with every page.
func TestNobodyIsRefusedForMissingFilesOfPages(t *testing.T) {
	for _, p := range []string{"bots.md", "recipes/rails.md", "recipes/wordpress.md"} {
		line := regexp.MustCompile(`match not path \*\.jpg .*`).FindString(string(check.Must(os.ReadFile(p))(t)))
		for _, kind := range strings.Fields("png gif webp avif svg ico css js mjs map woff woff2 ttf otf mp3 mp4 webmanifest") {
			check.That(t, slices.Contains(strings.Fields(line), "*."+kind), "%s: got no *.%s in %q", p, kind, line)
		}
	}
}

// TestTheWayBackIsNamedBeforeALiveServerStops: somebody whose site is down has no time to read
// on. Apache has more than one file to put back.
func TestTheWayBackIsNamedBeforeALiveServerStops(t *testing.T) {
	back := map[string]string{
		"docs/recipes/wordpress.md": "sudo systemctl stop caddy; sudo cp -a /etc/apache2.before/. /etc/apache2/; sudo systemctl restart apache2",
	}
	stops := regexp.MustCompile(`systemctl (stop nginx|restart apache2)`)
	for _, p := range pages(t) {
		want, ok := back[p.name]
		if !ok {
			continue
		}
		named := false
		for _, f := range p.fences {
			for line := range strings.Lines(f.text) {
				line = strings.TrimSpace(line)
				named = named || line == want
				if !named && stops.MatchString(line) {
					t.Errorf("%s:%d: got %q before the way back, want %q first", p.name, f.line, line, want)
				}
			}
		}
		check.That(t, named, "%s: got no way back, want %q", p.name, want)
	}
}

// TestTheWayBackIsAChapter of the guide, which nobody pastes by mistake, and which is named before
// a live server stops.
func TestTheWayBackIsAChapter(t *testing.T) {
	raw := check.Must(os.ReadFile(filepath.Join(root, "docs/getting-started.md")))(t)
	forward, back, found := strings.Cut(string(raw), "\n## Going back\n")
	before, _, stops := strings.Cut(forward, "sudo systemctl stop nginx\n")
	check.That(t, found && stops && strings.Contains(before, "](#going-back)"), "got a chapter %t and a stop %t, want both, and the chapter named before the stop", found, stops)
	for _, command := range []string{"systemctl start nginx", "throttle shadow --all"} {
		check.That(t, !strings.Contains(forward, command) && strings.Contains(back, command), "got %q among the steps forward, or not among those back", command)
	}
}

// orderOfEvaluation returns the numbered lines under a heading.
func orderOfEvaluation(p *page, title string) (lines []string) {
	under := false
	for _, line := range p.prose {
		switch {
		case strings.HasPrefix(line, "#"):
			under = line == "## "+title
		case under && numbered.MatchString(line):
			lines = append(lines, line)
		}
	}
	return lines
}

var numbered = regexp.MustCompile(`^[1-9]\. `)

func TestTheOrderOfEvaluationStandsOnOnePage(t *testing.T) {
	n := 0
	for _, p := range pages(t) {
		lines := orderOfEvaluation(p, "Evaluation order")
		if len(lines) == 0 {
			continue
		}
		n++
		check.That(t, len(lines) == 5, "%s: got the order of evaluation\n%s\nwant five lines", p.name, strings.Join(lines, "\n"))
	}
	check.Equal(t, n, 1, "the order of evaluation on pages")
}
