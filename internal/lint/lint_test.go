package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// root is the module's root, from this folder.
const root = "../.."

// notOurs are folders, and files in their place, that hold what tools have made.
var notOurs = []string{".git", "node_modules", "bin", "dist"}

// maxTextBytes bounds the files that are searched as text.
const maxTextBytes = 16 << 20

// walk calls visit for every file of the project, its path with slashes.
func walk(t *testing.T, visit func(name string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains(notOurs, d.Name()) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && !slices.Contains(notOurs, d.Name()) { // .git is a file in a linked worktree
			rel, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			visit(filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// load parses every Go file of the project.
func load(t *testing.T) (files []*file) {
	t.Helper()
	walk(t, func(name string) {
		if !strings.HasSuffix(name, ".go") || slices.Contains(strings.Split(name, "/"), "testdata") {
			return
		}
		src, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := parse(name, src)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	})
	return files
}

// TestHouse holds every Go file against every rule.
func TestHouse(t *testing.T) {
	files := load(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, fault := range r.check(files) {
				t.Error(fault)
			}
		})
	}
}

// TestRules shows each rule what it must catch and what it must let pass.
// Commands of testdata/*:
//
//	check RULE path=(a.go, b.go)   the input is Go files, divided by lines of ===
//	paths path=file                the input is any text
//	deps                           the input is lines "package: imports …"
func TestRules(t *testing.T) {
	shown := map[string]bool{}
	datadriven.Walk(t, "testdata", func(t *testing.T, name string) {
		datadriven.RunTest(t, name, func(t *testing.T, d *datadriven.TestData) string {
			var out []string
			switch d.Cmd {
			case "check":
				rule, found := d.CmdArgs[0].Key, false
				for _, r := range rules {
					if r.name == rule {
						found = true
						out = r.check(parseAll(t, d))
						shown[rule] = shown[rule] || len(out) > 0
					}
				}
				if !found {
					d.Fatalf(t, "no rule %q", rule)
				}
			case "paths":
				var path string
				d.ScanArgs(t, "path", &path)
				out = checkPaths(path, []byte(d.Input))
			case "deps":
				out = checkDeps(parseDeps(d.Input))
			default:
				d.Fatalf(t, "no command %q", d.Cmd)
			}
			if len(out) == 0 {
				return "ok\n"
			}
			return strings.Join(out, "\n") + "\n"
		})
	})
	for _, r := range rules {
		if !shown[r.name] {
			t.Errorf("rule %s: no file of testdata shows what it catches", r.name)
		}
	}
}

func parseAll(t *testing.T, d *datadriven.TestData) []*file {
	t.Helper()
	var paths []string
	for _, a := range d.CmdArgs {
		if a.Key == "path" {
			paths = a.Vals
		}
	}
	sources := strings.Split(d.Input, "===\n")
	if len(sources) != len(paths) {
		d.Fatalf(t, "%d paths for %d files", len(paths), len(sources))
	}
	var files []*file
	for i, src := range sources {
		f, err := parse(paths[i], []byte(src))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		files = append(files, f)
	}
	return files
}

// TestPaths: no file of the project names a path of one machine.
func TestPaths(t *testing.T) {
	walk(t, func(name string) {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > maxTextBytes || pathsAllowed[name] != "" {
			return
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range checkPaths(name, data) {
			t.Error(fault)
		}
	})
}

// checkPaths searches a text for paths of one machine. A file with a zero byte
// is no text.
func checkPaths(name string, data []byte) (out []string) {
	if bytes.IndexByte(data, 0) >= 0 {
		return nil
	}
	line := 0
	for text := range bytes.Lines(data) {
		line++
		for _, p := range machinePaths {
			if bytes.Contains(text, []byte(p)) {
				out = append(out, fmt.Sprintf("%s:%d: a path of one machine: %s", name, line, p))
			}
		}
	}
	return out
}

// dep is one package that core reaches, as go list shows it.
type dep struct {
	ImportPath string
	Imports    []string
}

// TestCoreReaches: by way of others, too, core reaches no network and no module
// that is not listed.
func TestCoreReaches(t *testing.T) {
	folders := map[string]bool{}
	for _, f := range load(t) {
		if f.is(core) {
			folders["./"+f.dir()] = true
		}
	}
	args := append([]string{"list", "-deps", "-json=ImportPath,Imports"}, slices.Sorted(maps.Keys(folders))...)
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var deps []dep
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var d dep
		if err := dec.Decode(&d); err != nil {
			t.Fatal(err)
		}
		deps = append(deps, d)
	}
	if len(deps) < len(folders) {
		t.Fatalf("go list: %d packages for %d folders", len(deps), len(folders))
	}
	for _, fault := range checkDeps(deps) {
		t.Error(fault)
	}
}

// checkDeps names each import, in what core reaches, of a package that core
// must not reach.
func checkDeps(deps []dep) (out []string) {
	for _, d := range deps {
		for _, i := range d.Imports {
			if why := notForCore(i); why != "" {
				out = append(out, d.ImportPath+" imports "+why)
			}
		}
	}
	return out
}

func parseDeps(input string) (deps []dep) {
	for line := range strings.Lines(input) {
		name, imports, _ := strings.Cut(line, ":")
		deps = append(deps, dep{name, strings.Fields(imports)})
	}
	return deps
}
