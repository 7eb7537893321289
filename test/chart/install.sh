#!/bin/sh
# Builds helm and kustomize and gathers the schemas of other projects' objects that the
# chart and the examples hold, once, into a cache outside the checkout, and prints its
# folder: bin/helm, bin/kustomize, crds/*.yaml. It takes some four minutes on two cores.
# All comes from the Go module proxy, which the checksum database vouches for.
#
# Usage: test/chart/install.sh
set -eu

helm=3.22.0
kustomize=5.7.1
kubernetes=1.37 # what helm template takes the cluster to be
gateway=1.6.1
inference=1.5.0
istio=1.32.0
prometheus=0.85.0
cache="${EPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epp}"
dir="$cache/chart-helm-$helm-kustomize-$kustomize-gateway-$gateway-inference-$inference-istio-$istio-prometheus-$prometheus"

die() {
	echo "install chart: $*" >&2
	exit 1
}

if [ -d "$dir" ]; then
	echo "$dir"
	exit 0
fi

command -v go >/dev/null || die "go is not installed"
mkdir -p "$cache"
tmp=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "building helm $helm and kustomize $kustomize once, into $dir" >&2

# build PACKAGE VERSION FLAGS
build() {
	(cd / && GOBIN="$tmp/bin" CGO_ENABLED=0 GOFLAGS=-buildvcs=false go install -trimpath -ldflags "-s -w $3" "$1@v$2") ||
		die "$1 could not be built; is the module proxy reachable?"
}
c=helm.sh/helm/v3/pkg/chartutil
build helm.sh/helm/v3/cmd/helm $helm "-X helm.sh/helm/v3/internal/version.version=v$helm -X $c.k8sVersionMajor=${kubernetes%.*} -X $c.k8sVersionMinor=${kubernetes#*.}"
build sigs.k8s.io/kustomize/kustomize/v5 $kustomize ""

# schema MODULE VERSION FILE…: files of a module, into crds/.
mkdir "$tmp/crds"
schema() {
	module=$1 version=$2
	shift 2
	from=$(cd / && GOFLAGS=-mod=mod go mod download -json "$module@v$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	[ -d "$from" ] || die "$module $version could not be fetched; is the module proxy reachable?"
	for file; do
		cp "$from/$file" "$tmp/crds/" || die "$module $version has no $file"
	done
}
# Licences: all four Apache-2.0.
crd=config/crd/standard/gateway.networking.k8s.io
schema sigs.k8s.io/gateway-api $gateway ${crd}_gatewayclasses.yaml ${crd}_gateways.yaml ${crd}_httproutes.yaml
crd=config/crd/bases/inference.networking
schema sigs.k8s.io/gateway-api-inference-extension $inference $crd.k8s.io_inferencepools.yaml $crd.x-k8s.io_inferenceobjectives.yaml $crd.x-k8s.io_inferencemodelrewrites.yaml
schema istio.io/api $istio kubernetes/customresourcedefinitions.gen.yaml
schema github.com/prometheus-operator/prometheus-operator $prometheus example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml
chmod -R u+w "$tmp"

[ -d "$dir" ] || mv "$tmp" "$dir"
echo "$dir"
