#!/bin/sh
# Builds the image of deploy/Dockerfile from dist/ with buildah, without a daemon and
# without namespaces, and writes it to dist/epp-image-ARCH.tar, which docker load and
# ctr images import read.
#
# Usage: test/image/build.sh VERSION ARCH [check]
#
# With check the image is looked at: its command runs, its user is not root, it holds
# the binary and the licences alone.
set -eu
cd "$(dirname "$0")/../.."
version=$1
arch=$2

die() {
	echo "test/image: $*" >&2
	exit 1
}

if ! command -v buildah >/dev/null; then
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || die "buildah is missing: install the package buildah"
	apt-get update -q >&2
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends buildah >&2
fi
[ -x "dist/epp-linux-$arch" ] || die "dist/epp-linux-$arch is not there; make dist builds it"

# The layers of an image that was made once are of no use to the next.
store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT INT TERM
echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$store/policy.json"
: >"$store/registries.conf"
export CONTAINERS_REGISTRIES_CONF="$store/registries.conf"
b() { buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"; }

b build --isolation chroot --signature-policy "$store/policy.json" --arch "$arch" --timestamp 0 \
	--build-arg "TARGETARCH=$arch" --build-arg "VERSION=$version" --file deploy/Dockerfile --tag "epp:$version" . >&2
rm -f "dist/epp-image-$arch.tar"
b push --quiet --signature-policy "$store/policy.json" "epp:$version" "docker-archive:dist/epp-image-$arch.tar:epp:$version" >&2
echo "dist/epp-image-$arch.tar"
[ "${3:-}" = check ] || exit 0

container=$(b from --pull-never --signature-policy "$store/policy.json" "epp:$version")
# With this isolation buildah 1.28 loses the output of a command that ends at once, in
# one run of a hundred.
said=
for _ in 1 2 3 4 5; do
	said=$(b run --isolation chroot "$container" /epp version)
	[ -z "$said" ] || break
done
[ "$said" = "$version" ] || die "epp version says \"$said\" in the image; want \"$version\""
ids=$(b inspect --type image --format '{{.OCIv1.Config.User}}' "epp:$version")
[ "$ids" = 65532:65532 ] || die "the image's user is \"$ids\"; want 65532:65532"
if b run --isolation chroot "$container" /bin/sh -c true 2>/dev/null; then
	die "the image has a shell"
fi
files=$(cd "$(b mount "$container")" && find . -type f -size +0 | sort | tr '\n' ' ')
[ "$files" = "./epp ./licenses/LICENSE ./licenses/NOTICE " ] || die "the image holds \"$files\"; want the binary and the licences"
size=$(wc -c <"dist/epp-image-$arch.tar")
binary=$(wc -c <"dist/epp-linux-$arch")
[ "$size" -lt $((binary + 1048576)) ] || die "the image has $size bytes, the binary $binary; want no more than 1 MiB beside it"
echo "image epp:$version: \"$said\", user $ids, no shell, $((size / 1048576)) MiB" >&2
