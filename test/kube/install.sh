#!/bin/sh
# Builds the real kube-apiserver, kubectl and etcd that tests run, once, into a cache
# outside the checkout, and prints their folder. Versions and checksums are pinned in
# apiserver/ and etcd/, which are modules of their own. It takes some ten minutes on
# two cores.
#
# Usage: test/kube/install.sh
set -eu

kubernetes=1.37.2
etcd=3.7.3
here=$(cd "$(dirname "$0")" && pwd)
cache="${EPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epp}"
dir="$cache/kube-$kubernetes-etcd-$etcd"

die() {
	echo "install kube: $*" >&2
	exit 1
}

if [ -x "$dir/kube-apiserver" ] && [ -x "$dir/kubectl" ] && [ -x "$dir/etcd" ]; then
	echo "$dir"
	exit 0
fi

command -v go >/dev/null || die "go is not installed"
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "building Kubernetes $kubernetes and etcd $etcd once, into $dir" >&2

# Without its version a server calls itself v0.0.0, and clients complain.
v=k8s.io/component-base/version
stamp="-X $v.gitVersion=v$kubernetes -X $v.gitMajor=1 -X $v.gitMinor=37 -X $v.gitTreeState=clean -X $v.gitCommit=0000000000000000000000000000000000000000 -X $v.buildDate=1970-01-01T00:00:00Z"

# build FOLDER PACKAGE NAME: a binary that is killed half-way is not there.
build() {
	[ -x "$dir/$3" ] && return
	(cd "$here/$1" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly go build -trimpath -ldflags "-s -w $stamp" -o "$tmp/$3" "$2") || die "$3 could not be built; is the module proxy reachable?"
	mv -f "$tmp/$3" "$dir/$3"
}
build etcd . etcd
build apiserver k8s.io/kubernetes/cmd/kube-apiserver kube-apiserver
build apiserver k8s.io/kubernetes/cmd/kubectl kubectl
echo "$dir"
