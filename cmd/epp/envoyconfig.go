package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"epp.internal/epp/config"
)

func envoyConfigCommand() *cobra.Command {
	var file string
	e := envoyConfig{}
	cmd := &cobra.Command{
		Use:   "envoy-config --config FILE",
		Short: "Print an Envoy configuration for the pool, with this picker beside it",
		Long: `envoy-config prints a whole Envoy configuration: a listener, the ext_proc filter that
asks this picker, the pool and the picker. It is what deploy/envoy holds examples of.

  --mode buffered     Envoy sends the whole request body and of the answer only its
                      headers: tokens stream past the picker.
  --mode streamed     The answer's bytes pass the picker, too: it sees the first token,
                      the usage, and can write back the model's name.
  --mode full-duplex  Bodies stream both ways, as Gateway API implementations do it.

  --upstream original-dst   Envoy sends to the one address that the picker names.
  --upstream override-host  The pool is listed; the picker may name several endpoints
                            (fallbacks), and Envoy says which one served.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := readConfig(file)
			if err != nil {
				return err
			}
			return e.write(cmd.OutOrStdout(), cfg)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "epp's configuration, a YAML file")
	cmd.Flags().StringVar(&e.mode, "mode", envoyBuffered, "how bodies reach the picker: buffered, streamed or full-duplex")
	cmd.Flags().StringVar(&e.upstream, "upstream", envoyOriginalDst, "how Envoy reaches endpoints: original-dst or override-host")
	cmd.Flags().BoolVar(&e.failOpen, "fail-open", false, "without a picker take any endpoint of the pool (needs override-host, and a mode other than full-duplex)")
	cmd.Flags().StringVar(&e.listen, "listen", ":10000", "Envoy's own address")
	cmd.Flags().StringVar(&e.admin, "admin", "127.0.0.1:9901", "Envoy's admin address, empty for none")
	cmd.Flags().StringSliceVar(&e.pickers, "picker", nil, "host:port of the picker, once for each replica (default: listen.extProc on this machine)")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}

// Values of --mode and --upstream.
const (
	envoyBuffered   = "buffered"
	envoyStreamed   = "streamed"
	envoyFullDuplex = "full-duplex"

	envoyOriginalDst  = "original-dst"
	envoyOverrideHost = "override-host"
)

// envoyConfig is what can be asked of an Envoy configuration.
type envoyConfig struct {
	mode, upstream string
	failOpen       bool
	listen, admin  string   // host:port; an empty admin is not served
	pickers        []string // host:port of each replica
}

// envoyMode is what a mode means in the filter's processing_mode.
type envoyMode struct {
	RequestBody, ResponseBody, RequestTrailer, ResponseTrailer string
	purpose                                                    string
}

// envoyModes: in FULL_DUPLEX_STREAMED Envoy refuses a configuration that does
// not send trailers; in STREAMED the trailers are a stream's end where there are
// some.
var envoyModes = map[string]envoyMode{
	envoyBuffered: {"BUFFERED", "NONE", "SKIP", "SKIP",
		`Use it unless there is a reason for another: the picker reads the whole request, and the answer streams past it at no cost. ` +
			`The picker sees an answer's headers and its end, not its first token, its usage or the model name in it.`},
	envoyStreamed: {"BUFFERED", "STREAMED", "SKIP", "SEND",
		`Use it where the picker has to see the answer's bytes: exact times of first tokens, usage, the client's own model name in answers. ` +
			`Every chunk of an answer goes through the picker.`},
	envoyFullDuplex: {"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", "SEND", "SEND",
		`Use it where bodies must not be held in Envoy, or to have what Gateway API implementations configure. ` +
			`Every chunk of a request and of an answer goes through the picker.`},
}

var envoyUpstreams = map[string]string{
	envoyOriginalDst: `Envoy sends to the one address that the picker names, and needs no list of endpoints.`,
	envoyOverrideHost: `Envoy knows the pool's endpoints, sends to the first usable one that the picker names, ` +
		`and tells the picker which one has served.`,
}

const (
	envoyFailClosed = `Fail-closed: without a picker clients get an error. Where a picker is killed, Envoy cuts the answers that run; where it is told to stop, they end first.`
	envoyFailOpen   = `Fail-open: without a picker Envoy takes the endpoint with the fewest requests, and answers that run go on. Clients never choose one.`
)

// envoyStrip are the request headers that name an address. Envoy or an endpoint
// would obey them, so a client's are removed before the picker is asked.
var envoyStrip = []string{
	"x-gateway-destination-endpoint",
	"x-gateway-destination-endpoint-fallback",
	"x-gateway-destination-endpoint-served",
	"x-gateway-destination-endpoint-subset",
	"x-prefiller-host-port",
	"x-encoder-hosts-ports",
	"x-data-parallel-host-port",
	"x-kv-cache-source-host-port",
}

// envoyMessageTimeout is how long Envoy waits for the picker's answer to one
// message. The picker tokenizes and picks in milliseconds; this is for a machine
// that is out of breath.
const envoyMessageTimeout = 10 * time.Second

// envoyText is the configuration with places to fill: ${NAME} is a value, and the lines
// from %if NAME to %else or %end are there where the value is not empty. It is no
// text/template, which calls methods by their names: where one package does, the linker
// keeps every exported method of all the others, a quarter of the binary.
//
//go:embed envoy.yaml.form
var envoyText string

// write writes the configuration. Errors name the flag.
func (e envoyConfig) write(w io.Writer, cfg *config.Config) error {
	mode, ok := envoyModes[e.mode]
	if !ok {
		return fmt.Errorf("--mode: %q: must be one of %s", e.mode, strings.Join(slices.Sorted(maps.Keys(envoyModes)), ", "))
	}
	upstream, ok := envoyUpstreams[e.upstream]
	if !ok {
		return fmt.Errorf("--upstream: %q: must be one of %s", e.upstream, strings.Join(slices.Sorted(maps.Keys(envoyUpstreams)), ", "))
	}
	override := e.upstream == envoyOverrideHost
	if e.failOpen && !override {
		return fmt.Errorf("--fail-open: with --upstream %s Envoy has no endpoint of its own to take; use %s", e.upstream, envoyOverrideHost)
	}
	if e.failOpen && e.mode == envoyFullDuplex {
		return fmt.Errorf("--fail-open: with --mode %s Envoy has given the body away and answers 500 without a picker; use %s or %s",
			envoyFullDuplex, envoyBuffered, envoyStreamed)
	}
	if cfg.Fallbacks > 0 && !override {
		return fmt.Errorf("--upstream %s: with fallbacks: %d the picker names several endpoints, and Envoy finds none in a list there; use %s, or fallbacks: 0",
			envoyOriginalDst, cfg.Fallbacks, envoyOverrideHost)
	}
	if override && cfg.Kubernetes.Pool != "" {
		return fmt.Errorf("--upstream %s: Envoy needs a list of endpoints there, and kubernetes.pool %q has none that stays; use %s",
			envoyOverrideHost, cfg.Kubernetes.Pool, envoyOriginalDst)
	}
	if len(e.pickers) == 0 {
		here, err := pickerHere(cfg)
		if err != nil {
			return err
		}
		e.pickers = []string{here}
	}
	if err := e.check(); err != nil {
		return err
	}
	failure := envoyFailClosed
	if e.failOpen {
		failure = envoyFailOpen
	}
	retries := 0
	if override {
		retries = cfg.Fallbacks
	}
	values := map[string]string{
		"Pool": several(len(cfg.Pool.Endpoints), "endpoint"), "Command": e.command(), "Without": envoyNoEndpoint,
		"Purpose":  envoyComment(strings.Join([]string{mode.purpose, upstream, failure}, "\n\n")),
		"FailOpen": strconv.FormatBool(e.failOpen), "Override": given(override), "Encrypted": given(!cfg.TLS.Insecure),
		"Retries": given(retries > 0), "RetryCount": strconv.Itoa(retries), "More": several(retries, "more endpoint"),
		"BodyBytes": strconv.Itoa(int(min(cfg.Limits.BodyBytes, math.MaxUint32))), "HeaderKB": strconv.Itoa(int(cfg.Limits.HeaderBytes >> 10)),
		"AnswerSeconds": strconv.Itoa(seconds(cfg.Timeouts.Answer.Duration)), "MessageSeconds": strconv.Itoa(seconds(envoyMessageTimeout)),
		"RequestBody": mode.RequestBody, "ResponseBody": mode.ResponseBody, "RequestTrailer": mode.RequestTrailer, "ResponseTrailer": mode.ResponseTrailer,
		"Strip": each(envoyStrip, "                - remove: ", ""),
	}
	if e.failOpen {
		values["Without"] = envoyAnyEndpoint
	}
	if cfg.Kubernetes.Pool != "" {
		values["Pool"] = "the InferencePool " + cfg.Kubernetes.Pool
	}
	if err := e.sockets(cfg, values); err != nil {
		return err
	}
	_, err := io.WriteString(w, fill(envoyText, values))
	return err
}

const (
	envoyNoEndpoint  = "Without a picker there is no endpoint, and clients get an error."
	envoyAnyEndpoint = "Without a picker any endpoint of the pool is taken."
)

// sockets adds the addresses to the values.
func (e envoyConfig) sockets(cfg *config.Config, values map[string]string) error {
	var endpoints []string
	for _, p := range cfg.Pool.Endpoints {
		endpoints = append(endpoints, p.Address)
	}
	var errs []error
	socket := func(address string) string {
		text, err := envoySocket(address)
		errs = append(errs, err)
		return text
	}
	list := func(addresses []string) string {
		var sockets []string
		for _, a := range addresses {
			sockets = append(sockets, socket(a))
		}
		return each(sockets, "        - endpoint: {address: ", "}")
	}
	values["Listen"], values["Endpoints"], values["Pickers"] = socket(e.listen), list(endpoints), list(e.pickers)
	if e.admin != "" {
		values["Admin"] = socket(e.admin)
	}
	return errors.Join(errs...)
}

// several counts things: "1 endpoint", "2 endpoints".
func several(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// given is a value that is there, or not.
func given(is bool) string {
	if is {
		return "true"
	}
	return ""
}

// each is a line for each of a list.
func each(list []string, before, after string) string {
	lines := make([]string, len(list))
	for i, s := range list {
		lines[i] = before + s + after
	}
	return strings.Join(lines, "\n")
}

// fill fills a form; see envoyText.
func fill(form string, values map[string]string) string {
	var b strings.Builder
	shown := true
	for line := range strings.Lines(form) {
		word, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch word {
		case "%if":
			shown = values[name] != ""
		case "%else":
			shown = !shown
		case "%end":
			shown = true
		default:
			if shown {
				b.WriteString(os.Expand(line, func(name string) string { return values[name] }))
			}
		}
	}
	return b.String()
}

// hostCharacters are those of names and of IP addresses.
const hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_"

// check verifies the addresses, which are the only free text that is written.
func (e envoyConfig) check() error {
	for _, a := range []string{e.listen, e.admin} {
		if host, _, _ := net.SplitHostPort(a); host != "" && net.ParseIP(host) == nil {
			return fmt.Errorf("address %q: host %q: Envoy listens on an IP address, such as 127.0.0.1", a, host)
		}
	}
	addresses := append([]string{e.listen}, e.pickers...)
	if e.admin != "" {
		addresses = append(addresses, e.admin)
	}
	for _, a := range addresses {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			return fmt.Errorf("address %q: must be host:port", a)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fmt.Errorf("address %q: port %q: must be a number within 0 and 65535", a, port)
		}
		if strings.Trim(host, hostCharacters) != "" {
			return fmt.Errorf("address %q: host %q has a character that no host has", a, host)
		}
	}
	return nil
}

// command is the command line that writes this configuration again.
func (e envoyConfig) command() string {
	s := fmt.Sprintf("epp envoy-config --config FILE --mode %s --upstream %s", e.mode, e.upstream)
	if e.failOpen {
		s += " --fail-open"
	}
	return s
}

// seconds rounds up.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// pickerHere is where an Envoy on the same machine finds this picker.
func pickerHere(cfg *config.Config) (string, error) {
	host, port, err := net.SplitHostPort(cfg.Listen.ExtProc)
	if err != nil {
		return "", fmt.Errorf("listen.extProc: %q: Envoy has no picker to ask; set it, or give --picker", cfg.Listen.ExtProc)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// envoySocket is an address in Envoy's form. One without a host is all
// interfaces.
func envoySocket(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return fmt.Sprintf(`{socket_address: {address: "%s", port_value: %s}}`, host, port), nil
}

// envoyComment breaks paragraphs into lines of a YAML comment.
func envoyComment(text string) string {
	const width = 84
	var lines []string
	for _, paragraph := range strings.Split(text, "\n\n") {
		line := "#"
		for _, word := range strings.Fields(paragraph) {
			if len(line)+1+len(word) > width {
				lines = append(lines, line)
				line = "#"
			}
			line += " " + word
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
