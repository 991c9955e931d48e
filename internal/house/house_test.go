// Package house holds the tests of where things live: which package may import which.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

const module = "github.com/caddy-throttle/caddy-throttle/"

// A room is packages and the others of this module that they may import.
type room struct{ packages, may string }

// concepts are the packages that hold one concept each. They may import each other, in no
// circle, and every room above may import them.
const concepts = "body changes cookie expiring form inflight/call inflight/fairqueue inflight/gate inflight/pass override " +
	"option perkey record refusal response signer sketch snapshot staticfile supportcode"

// rooms are all packages that are built, from the bottom to the top, with a line for each
// row of the table in CONTRIBUTING. Names without a folder are in caddymodule/internal.
var rooms = []room{
	{"leakybucket/internal/door leakybucket/key", ""},
	{"leakybucket", "leakybucket/internal/door leakybucket/key"},
	{"leakybucket/store leakybucket/internal/coalesce", "leakybucket"},
	{"leakybucket/storetest/servertest leakybucket/storetest/testseed leakybucket/storetest/check", ""},
	{"leakybucket/memstore leakybucket/storetest", "leakybucket leakybucket/internal/door leakybucket/key leakybucket/store leakybucket/storetest/check"},
	{"leakybucket/sharedstore", "leakybucket leakybucket/memstore leakybucket/store"},
	{"leakybucket/httplimit", "leakybucket leakybucket/key"},
	{"leakybucket/redisstore leakybucket/pgstore leakybucket/memcachedstore", "leakybucket leakybucket/internal/coalesce leakybucket/key leakybucket/store"},
	{"golden", ""},
	{concepts, concepts},
	{"limit", "leakybucket/sharedstore"},
	{"config", "limit leakybucket/sharedstore"},
	{"caddyfile", "config limit"},
	{"telemetry", "limit"},
	{"admin/wire", "telemetry"},
	{"stores", "leakybucket/sharedstore telemetry leakybucket/memstore"},
	{"inflight", "config limit stores telemetry leakybucket/memstore"},
	{"engine", "config limit inflight leakybucket/sharedstore stores telemetry"},
	{"admin", "admin/wire engine limit inflight leakybucket/sharedstore stores telemetry"},
	{"caddymodule", "admin caddyfile config limit engine inflight leakybucket/sharedstore stores"},
	{"servertest", "caddymodule admin admin/wire limit engine leakybucket/memstore leakybucket/sharedstore stores telemetry"},
	{"caddymodule/redis", "caddymodule stores leakybucket/redisstore"},
	{"caddymodule/postgres", "caddymodule stores leakybucket/pgstore"},
}

// guests use the core by what package caddymodule exports, as packages of strangers do. The
// core imports none of them. Only cli, which reads the JSON of the admin API, and tune, which decides
// as the core does, use more.
var guests = []room{
	{"caddymodule/command", "caddymodule"},
	{"caddymodule/cli", "caddymodule/command admin/wire"},
	{"caddymodule/crawler", "caddymodule caddymodule/crawler/internal/verify"},
	{"caddymodule/crawler/internal/verify", "caddymodule expiring leakybucket/key"},
	{"caddymodule/listener", "caddymodule expiring leakybucket/key"},
	{"caddymodule/inspector caddymodule/seen", "caddymodule"},
	{"caddymodule/tune/internal/accesslog", "caddymodule/command leakybucket/key"},
	{"caddymodule/tune/internal/clients", "caddymodule/command caddymodule/tune/internal/accesslog sketch leakybucket/key"},
	{"caddymodule/tune/internal/recommend", "caddymodule/command caddymodule/tune/internal/accesslog caddymodule/tune/internal/clients limit leakybucket"},
	{"caddymodule/tune", "caddymodule caddymodule/command caddymodule/tune/internal/accesslog caddymodule/tune/internal/clients caddymodule/tune/internal/recommend " +
		"config sketch limit engine option record leakybucket leakybucket/memstore"},
	{"caddymodule/memcached", "caddymodule leakybucket leakybucket/memcachedstore"},
	{"caddymodule/standard", "caddymodule caddymodule/cli caddymodule/crawler caddymodule/inspector caddymodule/listener caddymodule/tune caddymodule/redis caddymodule/postgres caddymodule/seen"},
	{"caddymodule/cmd/caddy", "caddymodule/standard"},
}

// full returns the import path of a package in a room.
func full(name string) string {
	if strings.HasPrefix(name, "leakybucket") || strings.HasPrefix(name, "caddymodule") {
		return module + name
	}
	return module + "caddymodule/internal/" + name
}

// A goPackage is what go list says of one.
type goPackage struct {
	ImportPath, Dir        string
	GoFiles, Imports, Deps []string
	Standard               bool
}

// listed is what go list says of all packages, once for all tests.
var listed = sync.OnceValues(func() ([]byte, error) {
	cmd := exec.Command("go", "list", "-tags", "nobadger,nomysql,nopgx", "-deps", "-json=ImportPath,Dir,GoFiles,Imports,Deps,Standard", "./leakybucket/...", "./leakybucket/pgstore/...", "./leakybucket/memcachedstore/...", "./leakybucket/redisstore/...", "./leakybucket/sharedstore/...", "./caddymodule/...")
	cmd.Dir = "../.."
	return cmd.Output()
})

// packages returns all packages by their import paths, and which of them are built of ours.
func packages(t *testing.T) (all map[string]*goPackage, ours []*goPackage) {
	t.Helper()
	out := check.Must(listed())(t)
	all = make(map[string]*goPackage)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(goPackage)
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return all, ours
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
		if strings.HasPrefix(p.ImportPath, module) && len(p.GoFiles) > 0 {
			ours = append(ours, p)
		}
	}
}

func TestContributingNamesEachRoom(t *testing.T) {
	page := check.Must(os.ReadFile("../../CONTRIBUTING.md"))(t)
	for _, r := range slices.Concat(rooms, guests) {
		for _, name := range strings.Fields(r.packages) {
			if !strings.Contains(string(page), "`"+name+"`") && !strings.HasPrefix(name, "caddymodule/tune/internal/") && !strings.HasPrefix(name, "caddymodule/crawler/internal/") {
				t.Errorf("got nothing about the package %s", name)
			}
		}
	}
	for _, found := range regexp.MustCompile("`([a-z/_]+/[a-z_]+\\.go)`").FindAllSubmatch(page, -1) {
		_, inAdapter := os.Stat("../../caddymodule/internal/" + string(found[1]))
		_, atTop := os.Stat("../../" + string(found[1]))
		check.That(t, inAdapter == nil || atTop == nil, "got the file %s, which does not exist", found[1])
	}
}

func TestEachRoomImportsWhatItMay(t *testing.T) {
	_, ours := packages(t)
	may := make(map[string][]string)
	everybody := "" // what each room of the core from the concepts on may import
	for i, r := range slices.Concat(rooms, guests) {
		if r.packages == concepts {
			everybody = " leakybucket leakybucket/key leakybucket/sharedstore leakybucket/store " + concepts
		}
		if i == len(rooms) {
			everybody = ""
		}
		allowed := strings.Fields(r.may + everybody)
		for i := range allowed {
			allowed[i] = full(allowed[i])
		}
		for _, name := range strings.Fields(r.packages) {
			may[full(name)] = allowed
		}
	}
	for _, p := range ours {
		allowed, known := may[p.ImportPath]
		if !known {
			t.Errorf("%s is in no room: add it to rooms, and to the table in CONTRIBUTING", p.ImportPath)
			continue
		}
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, module) && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s, and may not", strings.TrimPrefix(p.ImportPath, module), strings.TrimPrefix(imported, module))
			}
		}
	}
}

// TestWhatRoomsAreBuiltOf is about what others wrote: the library needs no Caddy, nor do slots
// and turns, its model and the memory store nothing at all, and sites without a shared store no client of a database.
// Caddy itself brings a driver for PostgreSQL, so of the adapter only own imports count.
func TestWhatRoomsAreBuiltOf(t *testing.T) {
	all, ours := packages(t)
	for _, p := range ours {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, dep := range p.Deps {
			foreign := !all[dep].Standard && !strings.HasPrefix(dep, module)
			switch {
			case foreign && slices.Contains([]string{"leakybucket", "leakybucket/store", "leakybucket/key", "leakybucket/memstore"}, name):
				t.Errorf("%s is built of %s, want the standard library only", name, dep)
			case (strings.HasPrefix(name, "leakybucket") || strings.HasSuffix(name, "inflight/gate")) && (strings.HasPrefix(dep, "github.com/caddyserver/") || strings.HasPrefix(dep, "go.uber.org/zap")):
				t.Errorf("%s is built of %s, want nothing of Caddy", name, dep)
			}
		}
		for _, imported := range p.Imports {
			client := strings.HasPrefix(imported, "github.com/redis/") || strings.HasPrefix(imported, "github.com/jackc/")
			if client && strings.HasPrefix(name, "caddymodule") {
				t.Errorf("%s imports %s, want no client of a database", name, imported)
			}
		}
	}
}

func TestEachPackageSaysWhereToBegin(t *testing.T) {
	_, ours := packages(t)
	for _, p := range ours {
		if name := strings.TrimPrefix(p.ImportPath, module); !strings.HasPrefix(name, "caddymodule") || slices.Contains([]string{"caddymodule/redis", "caddymodule/postgres", "caddymodule/standard", "caddymodule/cmd/caddy"}, name) || strings.HasSuffix(name, "/golden") || strings.HasSuffix(name, "/servertest") {
			continue
		}
		said := slices.ContainsFunc(p.GoFiles, func(name string) bool {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			return err == nil && strings.Contains(strings.ReplaceAll(f.Doc.Text(), "\n", " "), "Begin with ")
		})
		check.That(t, said, "the comment of package %s does not say where to begin", p.ImportPath)
	}
}

// A package that one other needs is a part of that, unless it is large. Configuration has names in JSON.
func TestPackagesAreNotTooSmallNorTypesTooLarge(t *testing.T) {
	_, ours := packages(t)
	for _, p := range ours {
		lines, users := 0, 0
		for _, user := range ours {
			if slices.Contains(user.Imports, p.ImportPath) {
				users++
			}
		}
		for _, name := range p.GoFiles {
			text := check.Must(os.ReadFile(filepath.Join(p.Dir, name)))(t)
			lines += bytes.Count(text, []byte("\n"))
			ast.Inspect(check.Must(parser.ParseFile(token.NewFileSet(), name, text, 0))(t), func(n ast.Node) bool {
				fields := 0
				if s, is := n.(*ast.StructType); is {
					for _, field := range s.Fields.List {
						if field.Tag == nil || strings.Contains(field.Tag.Value, `json:"-"`) {
							fields += max(1, len(field.Names))
						}
					}
				}
				check.That(t, fields <= 15, "%s/%s: a type has %d fields, want at most 15", p.ImportPath, name, fields)
				return true
			})
		}
		check.That(t, lines >= 150 || users > 1 || !strings.Contains(p.ImportPath, "caddymodule/internal/"), "%s has %d lines and %d users", p.ImportPath, lines, users)
	}
}

// TestSize holds the lines of code, the tests' and the words of the documentation to their bounds.
func TestSize(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("size.sh is written for Linux")
	}
	out := string(check.Must(exec.Command("../../bench/size.sh").Output())(t))
	for row, most := range map[string]int{
		"code, all that ships": 27_000, "the core": 15_500, "internal/limit": 4_000, "internal/inflight": 2_500,
		"tests, all lines": 55_000, "words": 26_000,
	} {
		found := regexp.MustCompile(`(?m)^ *` + row + `.* ([0-9]+)$`).FindStringSubmatch(out)
		check.Assume(t, found != nil, "got no row %q in\n%s", row, out)
		n, err := strconv.Atoi(found[1])
		check.That(t, err == nil && n > 0 && n <= most, "%s: got %d, want at most %d", row, n, most)
	}
}
