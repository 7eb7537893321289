package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// modulePath begins the import path of every package of the house.
const modulePath = "epp.internal/epp"

// file is one Go file.
type file struct {
	path string // from the module's root, with slashes
	fset *token.FileSet
	ast  *ast.File
}

func parse(name string, src []byte) (*file, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	return &file{name, fset, f}, err
}

func (f *file) test() bool  { return strings.HasSuffix(f.path, "_test.go") }
func (f *file) dir() string { return path.Dir(f.path) }

// layer is the layer of f's folder; ok is false for a folder in no line.
func (f *file) layer() (l layer, ok bool) { return layerOf(f.dir()) }

// is is true for a file of layer l that is no test.
func (f *file) is(l layer) bool {
	got, ok := f.layer()
	return ok && got == l && !f.test()
}

// fork is true for a file whose style is not ours: a fork's, or a generator's.
func (f *file) fork() bool {
	l, ok := f.layer()
	return ok && l == library || ast.IsGenerated(f.ast)
}

func layerOf(dir string) (layer, bool) {
	for {
		if l, ok := layers[dir]; ok {
			return l, true
		}
		if dir = path.Dir(dir); dir == "." {
			return 0, false
		}
	}
}

// faults gathers what a rule finds.
type faults []string

func (fs *faults) add(f *file, at ast.Node, format string, args ...any) {
	*fs = append(*fs, fmt.Sprintf("%s:%d: %s", f.path, f.fset.Position(at.Pos()).Line, fmt.Sprintf(format, args...)))
}

// rules are all that are checked of Go files.
var rules = []struct {
	name  string
	check func([]*file) faults
}{
	{"layers", checkLayers},
	{"core", checkCore},
	{"clock", checkClock},
	{"doc", checkDoc},
	{"alias", checkAlias},
	{"linker", checkLinker},
	{"metrics", checkMetrics},
	{"folders", checkFolders},
	{"sleep", checkSleep},
	{"skip", checkSkip},
	{"todo", checkTodo},
	{"errors", checkErrors},
}

func importPath(s *ast.ImportSpec) string {
	p, _ := strconv.Unquote(s.Path.Value) // the parser has unquoted it before
	return p
}

// folderOf turns an import path of the house into a folder.
func folderOf(importPath string) (string, bool) {
	if importPath == modulePath {
		return ".", true
	}
	return strings.CutPrefix(importPath, modulePath+"/")
}

func top(dir string) string {
	t, _, _ := strings.Cut(dir, "/")
	return t
}

// checkLayers: a folder has a layer, and imports only layers before its own.
func checkLayers(files []*file) (out faults) {
	for _, f := range files {
		own, ok := f.layer()
		if !ok {
			out.add(f, f.ast.Name, "folder %s has no layer; name it in internal/lint/layers_test.go", f.dir())
			continue
		}
		for _, s := range f.ast.Imports {
			to, ours := folderOf(importPath(s))
			if !ours {
				if std := !strings.Contains(top(importPath(s)), "."); !std && own == noun && !f.test() {
					out.add(f, s, "%s: the nouns import the standard library alone", importPath(s))
				}
				continue
			}
			l, ok := layerOf(to)
			if ok && !f.test() && !mayImport(f.dir(), own, to, l) {
				out.add(f, s, "%s (%s) must not import %s (%s)", f.dir(), own, to, l)
			}
		}
	}
	return out
}

func mayImport(from string, own layer, to string, l layer) bool {
	switch {
	case l == own && own == edge:
		return top(from) == top(to) || edgePairs[[2]string{top(from), top(to)}] != ""
	case l == own && own == noun, l == own && own == command:
		return false
	case l == own:
		return true
	case own == library:
		return false
	}
	return l < own
}

// checkCore: core imports no package that touches the world, and of others'
// modules the listed ones. So do the forks that it is built on.
func checkCore(files []*file) (out faults) {
	for _, f := range files {
		if !f.is(core) && !f.is(library) {
			continue
		}
		for _, s := range f.ast.Imports {
			p := importPath(s)
			if why := coreForbidden[p]; why != "" {
				out.add(f, s, "%s: %s", p, why)
			} else if why := notForCore(p); why != "" {
				out.add(f, s, "%s", why)
			}
		}
	}
	return out
}

// notForCore says why core may not hold the package at all, or "".
func notForCore(importPath string) string {
	if slices.Contains(coreUnreachable, importPath) {
		return importPath + ": core must not reach it, not even by way of others"
	}
	if _, ours := folderOf(importPath); ours || !strings.Contains(top(importPath), ".") {
		return ""
	}
	for m := range coreModules {
		if importPath == m || strings.HasPrefix(importPath, m+"/") {
			return ""
		}
	}
	return importPath + ": not among the modules that core may import"
}

// checkClock: core reads no clock and no global random source.
func checkClock(files []*file) (out faults) {
	for _, f := range files {
		if !f.is(core) && !f.is(library) {
			continue
		}
		eachUse(f, "time", func(s *ast.SelectorExpr) {
			if slices.Contains(clockFuncs, s.Sel.Name) {
				out.add(f, s, "time.%s reads a clock; take now time.Time as an argument", s.Sel.Name)
			}
		})
		for _, p := range []string{"math/rand", "math/rand/v2"} {
			eachUse(f, p, func(s *ast.SelectorExpr) {
				if ast.IsExported(s.Sel.Name) && !slices.Contains(seeded, s.Sel.Name) && !isRandType(s.Sel.Name) {
					out.add(f, s, "rand.%s uses the global source; take a seed as an argument", s.Sel.Name)
				}
			})
		}
	}
	return out
}

func isRandType(name string) bool {
	return slices.Contains([]string{"Rand", "Source", "Source64", "Zipf", "PCG", "ChaCha8"}, name)
}

// eachUse calls visit for every pkg.Name of an imported package.
func eachUse(f *file, importedPath string, visit func(*ast.SelectorExpr)) {
	name := ""
	for _, s := range f.ast.Imports {
		if importPath(s) == importedPath {
			name = path.Base(strings.TrimSuffix(importedPath, "/v2"))
			if s.Name != nil {
				name = s.Name.Name
			}
		}
	}
	if name == "" {
		return
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && id.Name == name {
				visit(s)
			}
		}
		return true
	})
}

// checkDoc: exactly one file of a package has its doc, which begins with the
// package's name.
func checkDoc(files []*file) (out faults) {
	docs, first := map[string]*file{}, map[string]*file{}
	for _, f := range files {
		if f.test() || f.fork() {
			continue
		}
		if first[f.dir()] == nil {
			first[f.dir()] = f
		}
		if f.ast.Doc == nil {
			continue
		}
		if other := docs[f.dir()]; other != nil {
			out.add(f, f.ast.Doc, "second package doc; %s has one", other.path)
			continue
		}
		docs[f.dir()] = f
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(f.ast.Doc.Text(), want) {
			out.add(f, f.ast.Doc, "package doc must begin with %q", want)
		}
	}
	for dir, f := range first {
		if docs[dir] == nil {
			out.add(f, f.ast.Name, "package %s has no doc", f.ast.Name.Name)
		}
	}
	slices.Sort(out)
	return out
}

// checkAlias: an import has no name of its own, but for generated APIs, and no
// import is for its effect alone, but for the listed ones.
func checkAlias(files []*file) (out faults) {
	for _, f := range files {
		if f.fork() {
			continue
		}
		for _, s := range f.ast.Imports {
			p := importPath(s)
			switch {
			case s.Name == nil:
			case s.Name.Name == "_" && blankable[p] != "":
			case s.Name.Name == "_":
				out.add(f, s, "_ %s: import for its effect; list it with a reason", p)
			case !slices.ContainsFunc(aliasable, func(m string) bool { return strings.HasPrefix(p, m) }):
				out.add(f, s, "%s %s: import alias; use the package's own name", s.Name.Name, p)
			}
		}
	}
	return out
}

// checkLinker: nothing that ships imports a package for which the linker keeps methods
// that nobody calls.
func checkLinker(files []*file) (out faults) {
	for _, f := range files {
		l, _ := f.layer()
		if f.test() || l == testOnly {
			continue
		}
		for _, s := range f.ast.Imports {
			if why := keepsMethods[importPath(s)]; why != "" {
				out.add(f, s, "%s: %s", importPath(s), why)
			}
		}
	}
	return out
}

var metricName = regexp.MustCompile(`^epp_[a-z0-9_]+$`)

// checkMetrics: every metric's name stands in one file, once, and ends in a unit.
func checkMetrics(files []*file) (out faults) {
	seen := map[string]bool{}
	for _, f := range files {
		if f.test() || f.fork() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			name, _ := strconv.Unquote(lit.Value) // the parser has unquoted it before
			switch unit := func(u string) bool { return strings.HasSuffix(name, u) }; {
			case !metricName.MatchString(name):
			case f.path != metricsFile:
				out.add(f, lit, "%s: metrics' names stand in %s", name, metricsFile)
			case seen[name]:
				out.add(f, lit, "%s is there twice", name)
			case !slices.ContainsFunc(metricUnits, unit) && !slices.Contains(fixedMetrics, name):
				out.add(f, lit, "%s ends in no unit; there are %s", name, strings.Join(metricUnits, " "))
			}
			seen[name] = true
			return true
		})
	}
	for _, f := range files {
		if f.path != metricsFile {
			continue
		}
		for _, name := range fixedMetrics {
			if !seen[name] {
				out.add(f, f.ast.Name, "%s is missing", name)
			}
		}
	}
	return out
}

// checkFolders: a folder's name says what is inside.
func checkFolders(files []*file) (out faults) {
	seen := map[string]bool{}
	for _, f := range files {
		if f.fork() || seen[f.dir()] {
			continue
		}
		seen[f.dir()] = true
		for part := range strings.SplitSeq(f.dir(), "/") {
			if slices.Contains(badFolders, part) {
				out.add(f, f.ast.Name, "folder %s: %q says nothing; name the noun that is inside", f.dir(), part)
			}
		}
	}
	return out
}

// checkSleep: a test waits for a channel or in a synctest bubble, never for a
// real clock. A function that calls synctest.Wait runs in a bubble: outside it
// would panic.
func checkSleep(files []*file) (out faults) {
	for _, f := range files {
		if !f.test() {
			continue
		}
		for _, d := range f.ast.Decls {
			if uses(d, "synctest", "Wait") {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					return !isCall(n, "synctest", "Test")
				case *ast.SelectorExpr:
					if isName(n, "time", "Sleep") {
						out.add(f, n, "time.Sleep on a real clock; wait for a channel, or use testing/synctest")
					}
					if n.Sel.Name == "Eventually" {
						out.add(f, n, "Eventually polls a real clock; wait for a channel, or use testing/synctest")
					}
				}
				return true
			})
		}
	}
	return out
}

// uses is true where pkg.name occurs inside n.
func uses(n ast.Node, pkg, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && isName(s, pkg, name) {
			found = true
		}
		return !found
	})
	return found
}

func isCall(c *ast.CallExpr, pkg, name string) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	return ok && isName(s, pkg, name)
}

func isName(s *ast.SelectorExpr, pkg, name string) bool {
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == pkg && s.Sel.Name == name
}

// checkSkip: no test is skipped. What package rapid calls Skip only draws again.
func checkSkip(files []*file) (out faults) {
	for _, f := range files {
		if !f.test() || f.fork() {
			continue
		}
		eachInScope(f.ast, nil, func(s *ast.SelectorExpr, runners []string) {
			id, ok := s.X.(*ast.Ident)
			if !ok {
				return
			}
			skips := slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name)
			if skips && slices.Contains(runners, id.Name) || isName(s, "testing", "Short") {
				out.add(f, s, "%s.%s: a test that may not run proves nothing", id.Name, s.Sel.Name)
			}
		})
	}
	return out
}

// eachInScope calls visit for every a.b inside n, with the names that are
// parameters of a type of package testing there.
func eachInScope(n ast.Node, runners []string, visit func(*ast.SelectorExpr, []string)) {
	ast.Inspect(n, func(in ast.Node) bool {
		switch in := in.(type) {
		case *ast.SelectorExpr:
			visit(in, runners)
		case *ast.FuncDecl:
			eachInScope(in.Body, testers(in.Type, runners), visit)
			return false
		case *ast.FuncLit:
			eachInScope(in.Body, testers(in.Type, runners), visit)
			return false
		}
		return true
	})
}

// testers returns outer with the parameters of a function added where they are
// of package testing, and taken out where they hide one.
func testers(t *ast.FuncType, outer []string) []string {
	names := slices.Clone(outer)
	for _, field := range t.Params.List {
		of := field.Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		s, selected := of.(*ast.SelectorExpr)
		for _, id := range field.Names {
			names = slices.DeleteFunc(names, func(n string) bool { return n == id.Name })
			if selected && uses(s, "testing", s.Sel.Name) {
				names = append(names, id.Name)
			}
		}
	}
	return names
}

var todo = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)

// checkTodo: what is not done is not written down in code.
func checkTodo(files []*file) (out faults) {
	for _, f := range files {
		if f.fork() {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if word := todo.FindString(c.Text); word != "" && f.dir() != "internal/lint" {
					out.add(f, c, "%s: do it, or leave it", word)
				}
			}
		}
	}
	return out
}

// checkErrors: an error says what is wrong, not that something failed.
func checkErrors(files []*file) (out faults) {
	for _, f := range files {
		if f.test() || f.fork() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "Errorf" && s.Sel.Name != "New" {
				return true
			}
			for _, a := range c.Args {
				if lit, ok := a.(*ast.BasicLit); ok && strings.Contains(strings.ToLower(lit.Value), "failed to") {
					out.add(f, lit, "%s: say the subject and what is wrong, not \"failed to\"", lit.Value)
				}
			}
			return true
		})
	}
	return out
}
