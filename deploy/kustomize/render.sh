#!/bin/sh
# Renders deploy/chart with its defaults into FOLDER/epp.yaml, which kustomize takes as
# a base: the chart is the one truth.
#
# Usage: deploy/kustomize/render.sh [FOLDER], by default base/ beside this file
set -eu
cd "$(dirname "$0")"
out=$(cd "${1:-base}" && pwd)/epp.yaml
helm=$(../../test/chart/install.sh)/bin/helm

# What helm says of itself does not hold here. An overlay puts its pool's name in place of
# my-pool, in the variable POOL and in the name of the lease.
{
	echo "# Made from deploy/chart by make kustomize."
	"$helm" template epp ../chart --namespace default --include-crds --set pool.name=my-pool |
		sed -e '/^ *helm.sh\/chart: /d' -e '/^ *app.kubernetes.io\/managed-by: Helm$/d' -e '/^# Source: /d' -e 's/ *$//'
} >"$out.new"
mv "$out.new" "$out"
