package lint

// layer says how far from the nouns a package stands. A package imports only
// layers before its own; core imports core too.
type layer int

const (
	noun     layer = iota // package epp: the standard library alone
	library               // third_party: forks, as pure as core, which keep their own style
	core                  // pure: no network, clock, random source or logger
	pipe                  // picker: the pipeline of a request
	edge                  // what touches the world; edges do not import each other
	command               // cmd: wires all of them
	testOnly              // only tests import it
)

func (l layer) String() string {
	return [...]string{"noun", "library", "core", "pipe", "edge", "command", "test only"}[l]
}

// layers gives each folder its layer. A folder inside a listed one has the same
// unless it is listed itself. A folder that is in no line is a fault: decide
// where it belongs before it grows.
var layers = map[string]layer{
	".":           noun,
	"third_party": library,

	"recall":   core,
	"openai":   core,
	"tokenize": core,
	"block":    core,
	"kvindex":  core,
	"route":    core,
	"fleet":    core,
	"audit":    core,
	"health":   core,
	"decision": core,
	"engine":   core,
	"trace":    core,
	"config":   core,

	"picker": pipe,

	"extproc":  edge,
	"proxy":    edge,
	"discover": edge,
	"scrape":   edge,
	"kvevents": edge,
	"probe":    edge,
	"report":   edge,
	"agent":    edge,
	"metrics":  edge,
	"web":      edge,
	"sim":      edge,
	"tune":     edge,
	"doctor":   edge,
	"epptest":  edge,
	"api":      edge,

	"cmd":      command,
	"examples": command,

	"bench":            testOnly,
	"test":             testOnly,
	"internal/lint":    testOnly,
	"internal/testtok": testOnly,
	"tokenize/bpe/gen": command, // writes the tables of package bpe
}

// edgePairs are the edges that import another edge, with the reason.
var edgePairs = map[[2]string]string{
	{"agent", "scrape"}:   "the agent reads its own engine as the picker would",
	{"agent", "kvevents"}: "the same",
	{"agent", "probe"}:    "the same",
	{"agent", "report"}:   "it sends what it read",
	{"tune", "sim"}:       "a candidate weight is judged by a simulated run",
}

// coreModules are the modules of others that core may import, with the reason.
var coreModules = map[string]string{
	"golang.org/x/text":            "Unicode normal forms, which tokenizers ask for",
	"github.com/cespare/xxhash/v2": "the reference for our own XXH64, and the engine model's block hashes",
	"go.yaml.in/yaml/v3":           "YAML as a tree that knows its lines, for the configuration's faults",
}

// coreForbidden are packages of the standard library that core must not import
// itself, with the reason.
var coreForbidden = map[string]string{
	"net":         "core opens no connection",
	"net/http":    "core opens no connection",
	"os":          "core reads no file, no environment and no signal; bytes come in as arguments",
	"os/exec":     "core starts no process",
	"os/signal":   "core reads no signal",
	"log":         "facts go out in the result; an edge logs them",
	"log/slog":    "facts go out in the result; an edge logs them",
	"expvar":      "facts go out in the result; an edge counts them",
	"crypto/rand": "chance enters as a seed",
}

// keepsMethods are packages that call methods by names which the linker cannot know,
// with the reason not to import them: they cost a quarter of the binary.
var keepsMethods = map[string]string{
	"text/template": "the linker would keep every exported method of every package; fill a form, as cmd/epp/envoyconfig.go does",
	"html/template": "the linker would keep every exported method of every package; write the page by hand, as sim does",
}

// coreUnreachable must not be in core at all, not even by way of others.
var coreUnreachable = []string{"net/http", "net/rpc", "os/exec", "log/slog"}

// clockFuncs are the functions of package time that read or wait for a clock.
var clockFuncs = []string{
	"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker",
}

// seeded are the functions of math/rand and math/rand/v2 that use no global source.
var seeded = []string{"New", "NewSource", "NewPCG", "NewChaCha8", "NewZipf"}

// aliasable are modules whose packages are generated with names that say
// nothing ("v1", "corev3"): there an alias is better than none.
var aliasable = []string{
	"k8s.io/",
	"sigs.k8s.io/gateway-api",
	"github.com/envoyproxy/go-control-plane/",
	"google.golang.org/grpc/health/grpc_health_v1",
}

// blankable are imports for their effect alone, with the reason.
var blankable = map[string]string{
	"embed": "the compiler asks for it beside a //go:embed of a string or []byte",
}

// badFolders are names that say nothing of what is inside.
var badFolders = []string{
	"util", "utils", "common", "types", "helper", "helpers", "framework", "interface", "interfaces", "misc",
}

// metricUnits end a metric's name: base units, and nouns of what is counted.
var metricUnits = []string{
	"_total", "_seconds", "_bytes", "_ratio", "_info",
	"_requests", "_tokens", "_blocks", "_nodes", "_pods", "_endpoints",
}

// fixedMetrics are the names that the product's requirements fix, and that
// dashboards outside of this project rely on, whatever they end in. They must
// all be there.
var fixedMetrics = []string{
	"epp_cache_match_ratio",
	"epp_queue_depth",
	"epp_pod_health_score",
	"epp_candidate_pods",
	"epp_scoring_latency_us",
	"epp_prefix_tree_nodes",
	"epp_stale_cache_routing_total",
	"epp_adapter_loads_triggered_total",
	"epp_routing_decisions_total",
	"epp_composite_score",
	"epp_max_queue",
}

// metricsFile is where every metric's name stands.
const metricsFile = "metrics/names.go"

// machinePaths begin a path that exists on one machine only. They are written
// in two parts here so that this file does not hold them.
var machinePaths = []string{"/" + "work/", "/" + "root/", "/" + "home/", "../" + "shared"}

// pathsAllowed are files that hold such a path for a reason.
var pathsAllowed = map[string]string{
	"internal/lint/testdata/paths": "shows the rule what it must catch",
}
