//go:build gateway

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// istioNamespace is istiod's own.
const istioNamespace = "istio-system"

// mesh is istiod's own configuration. Stock Envoy has none of istio-proxy's
// extensions, so nothing may ask for one: no metrics of Istio's making, and no
// mutual TLS, whose certificates would come from istio-proxy's agent.
const mesh = `trustDomain: cluster.local
enablePrometheusMerge: false
enableAutoMtls: false
accessLogFile: /dev/stdout
defaultProviders: {metrics: []}
`

// istiodEnv turns the inference extension on, and off what stock Envoy lacks, and
// what nobody needs here: webhooks, and an election among one.
var istiodEnv = []string{
	"ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true", "PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
	"ENABLE_LEADER_ELECTION=false", "INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=",
	"POD_NAME=istiod-0", "POD_NAMESPACE=" + istioNamespace, "REVISION=default", "CLUSTER_ID=Kubernetes",
}

// proxyImage is the image that istiod's templates give a gateway's pod.
const proxyImage = "local/proxyv2:stock"

// startIstiod applies the CRDs, starts istiod and returns when it has taken its
// GatewayClass.
func startIstiod(ctx context.Context, c *cluster, p parts) error {
	if _, err := c.run(ctx, "", "apply", "--server-side", "-f", filepath.Join(p.gateway, "crds"), "-f", "../../deploy/crds"); err != nil {
		return err
	}
	if _, err := c.run(ctx, "", "create", "namespace", istioNamespace); err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "istiod")
	inject := filepath.Join(dir, "var/lib/istio/inject")
	if err := os.MkdirAll(inject, 0o700); err != nil {
		return err
	}
	if err := errors.Join(writeInject(filepath.Join(p.gateway, "istiod-chart"), inject), os.WriteFile(filepath.Join(dir, "mesh.yaml"), []byte(mesh), 0o600)); err != nil {
		return err
	}
	err := c.startIn(dir, istiodEnv, "istiod", filepath.Join(p.gateway, "pilot-discovery"), "discovery", "--kubeconfig", c.kubeconfig,
		"--meshConfig", filepath.Join(dir, "mesh.yaml"), "--httpAddr", hostIP+":15008", "--httpsAddr", hostIP+":15017", "--grpcAddr", hostIP+":15010", "--secureGRPCAddr", hostIP+":15012")
	if err != nil {
		return err
	}
	_, err = await(ctx, c, "/apis/gateway.networking.k8s.io/v1/gatewayclasses?fieldSelector=metadata.name=istio", func(g *object) bool {
		return g.Status.condition("Accepted").Status == "True"
	})
	if err != nil {
		err = fmt.Errorf("istiod: %w: %s", err, c.parts[len(c.parts)-1].log(20))
	}
	return err
}

// writeInject makes the two files that Istio's chart would put beside istiod, from
// the files of that chart: without them istiod makes no gateway a Deployment.
func writeInject(chart, dir string) error {
	templates := map[string]string{}
	for name, file := range map[string]string{
		"kube-gateway": "kube-gateway.yaml", "waypoint": "waypoint.yaml", "sidecar": "injection-template.yaml", "gateway": "gateway-injection-template.yaml",
		"agentgateway": "agentgateway.yaml", "agentgateway-waypoint": "agentgateway-waypoint.yaml",
	} {
		text, err := os.ReadFile(filepath.Join(chart, file))
		if err != nil {
			return err
		}
		templates[name] = string(text)
	}
	config, err := yaml.Marshal(map[string]any{"policy": "enabled", "defaultTemplates": []string{"sidecar"}, "templates": templates})
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	var file struct {
		Defaults struct {
			Global          map[string]any `yaml:"global"`
			SidecarInjector map[string]any `yaml:"sidecarInjectorWebhook"`
			CNI             map[string]any `yaml:"cni"`
			Gateways        map[string]any `yaml:"gateways"`
		} `yaml:"_internal_defaults_do_not_set"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return err
	}
	d := &file.Defaults
	d.Global["hub"], d.Global["tag"], d.Global["istioNamespace"] = "local", "stock", istioNamespace
	values, err := json.Marshal(map[string]any{
		"global": d.Global, "sidecarInjectorWebhook": d.SidecarInjector, "revision": "", "gateways": d.Gateways,
		"pilot": map[string]any{"cni": d.CNI, "env": map[string]any{}},
	})
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "config"), config, 0o600), os.WriteFile(filepath.Join(dir, "values"), values, 0o600))
}

// startEnvoy is the image of a gateway's pod: stock Envoy, which is told where
// istiod is, and who it is itself.
func startEnvoy(c *cluster, binary string) func(p *pod, ip string) (running, error) {
	return func(p *pod, ip string) (running, error) {
		m := &p.Metadata
		bootstrap, err := json.Marshal(map[string]any{
			"node": map[string]any{
				"id":      fmt.Sprintf("router~%s~%s.%s~%s.svc.cluster.local", ip, m.Name, m.Namespace, m.Namespace),
				"cluster": m.Name,
				"metadata": map[string]any{
					"NAMESPACE": m.Namespace, "NAME": m.Name, "LABELS": m.Labels, "CLUSTER_ID": "Kubernetes", "INSTANCE_IPS": ip, "ISTIO_VERSION": "1.30.0",
				},
			},
			"admin":             map[string]any{"address": socket(ip, adminPort)},
			"dynamic_resources": dynamicResources,
			"static_resources":  map[string]any{"clusters": []any{istiodCluster}},
		})
		if err != nil {
			return nil, err
		}
		proc, err := startProcess(m.Name, c.dir, nil, binary, "--config-yaml", string(bootstrap), "--concurrency", "1", "--log-level", "warning", "--disable-hot-restart")
		if err != nil {
			return nil, err
		}
		return &daemon{process: proc, namespace: m.Namespace, address: ip, look: answers(plain, fmt.Sprintf("http://%s:%d/ready", ip, adminPort))}, nil
	}
}

// adminPort is where each Envoy tells of itself.
const adminPort = 15000

// plain is the client of what is no API server; each request has its own connection.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func socket(ip string, port int) map[string]any {
	return map[string]any{"socket_address": map[string]any{"address": ip, "port_value": port}}
}

var (
	ads = map[string]any{"ads": map[string]any{}, "resource_api_version": "V3"}

	dynamicResources = map[string]any{
		"lds_config": ads, "cds_config": ads,
		"ads_config": map[string]any{"api_type": "GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
			"grpc_services": []any{map[string]any{"envoy_grpc": map[string]any{"cluster_name": "istiod"}}}},
	}

	istiodCluster = map[string]any{
		"name": "istiod", "type": "STATIC", "connect_timeout": "1s",
		"typed_extension_protocol_options": map[string]any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": map[string]any{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": map[string]any{"http2_protocol_options": map[string]any{}}}},
		"load_assignment": map[string]any{"cluster_name": "istiod", "endpoints": []any{map[string]any{
			"lb_endpoints": []any{map[string]any{"endpoint": map[string]any{"address": socket(hostIP, 15010)}}}}}},
	}
)

// object is what tests read of any other object.
type object struct {
	Metadata meta   `json:"metadata"`
	Status   status `json:"status"`
}

// status is that of a class, a gateway, a route or a pool.
type status struct {
	Conditions []condition `json:"conditions"`
	Parents    []struct {
		ParentRef struct {
			Name string `json:"name"`
		} `json:"parentRef"`
		ControllerName string      `json:"controllerName"`
		Conditions     []condition `json:"conditions"`
	} `json:"parents"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// condition returns the one of a type, empty where there is none.
func (s *status) condition(kind string) condition { return find(s.Conditions, kind) }

// of returns the condition that is about a parent.
func (s *status) of(parent, kind string) condition {
	for _, p := range s.Parents {
		if p.ParentRef.Name == parent {
			return find(p.Conditions, kind)
		}
	}
	return condition{}
}

func find(list []condition, kind string) condition {
	for _, c := range list {
		if c.Type == kind {
			return c
		}
	}
	return condition{}
}
