#!/bin/sh
# Builds what the gateway's tests run besides test/kube/install.sh: Istio's
# pilot-discovery and the real kube-controller-manager, once, into a cache outside
# the checkout, beside the CRDs and chart files of the same modules, and prints
# their folder. Versions and checksums are pinned in istiod/ and ../kube/apiserver/.
# It takes some ten minutes on two cores.
#
# Usage: test/gateway/install.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache="${EPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epp}"

die() {
	echo "install gateway: $*" >&2
	exit 1
}

# version FOLDER MODULE: as its go.mod pins it.
version() {
	awk -v m="$2" '{ for (i = 1; i < NF; i++) if ($i == m && $(i+1) ~ /^v/) { print $(i+1); exit } }' "$here/$1/go.mod"
}
istio=$(version istiod istio.io/istio)
kubernetes=$(version ../kube/apiserver k8s.io/kubernetes)
[ -n "$istio" ] && [ -n "$kubernetes" ] || die "istiod/go.mod or ../kube/apiserver/go.mod pins no version"
dir="$cache/gateway-istio-${istio##*-}-kube-${kubernetes#v}"

if [ -e "$dir/complete" ]; then
	echo "$dir"
	exit 0
fi

command -v go >/dev/null || die "go is not installed"
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "building pilot-discovery of Istio $istio and kube-controller-manager $kubernetes once, into $dir" >&2
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly

# build FOLDER PACKAGE NAME LDFLAGS: a binary that is killed half-way is not there.
build() {
	[ -x "$dir/$3" ] && return
	(cd "$here/$1" && go build -trimpath -ldflags "-s -w $4" -o "$tmp/$3" "$2") || die "$3 could not be built; is the module proxy reachable?"
	mv -f "$tmp/$3" "$dir/$3"
}
v=k8s.io/component-base/version
build ../kube/apiserver k8s.io/kubernetes/cmd/kube-controller-manager kube-controller-manager \
	"-X $v.gitVersion=$kubernetes -X $v.gitMajor=1 -X $v.gitMinor=$(echo "$kubernetes" | cut -d. -f2) -X $v.gitTreeState=clean -X $v.gitCommit=0000000000000000000000000000000000000000 -X $v.buildDate=1970-01-01T00:00:00Z"
build istiod istio.io/istio/pilot/cmd/pilot-discovery pilot-discovery "-X istio.io/istio/pkg/version.buildVersion=$istio"

# files NAME MODULE PATH…: from the module cache, whose bytes go.sum has checked.
files() {
	name=$1
	module=$(cd "$here/istiod" && go mod download "$2" && go list -m -f '{{.Dir}}' "$2") || die "$2 is not to be had"
	shift 2
	mkdir -p "$dir/$name"
	for path in "$@"; do
		cp -f "$module"/$path "$dir/$name/" || die "$module has no $path"
	done
	chmod -R u+w "$dir/$name"
}
files crds istio.io/istio manifests/charts/base/files/crd-all.gen.yaml
files crds sigs.k8s.io/gateway-api 'config/crd/standard/*.yaml'
files crds sigs.k8s.io/gateway-api-inference-extension config/crd/bases/inference.networking.k8s.io_inferencepools.yaml
files istiod-chart istio.io/istio 'manifests/charts/istio-control/istio-discovery/files/*.yaml' manifests/charts/istio-control/istio-discovery/values.yaml
touch "$dir/complete"
echo "$dir"
