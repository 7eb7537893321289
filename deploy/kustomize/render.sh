#!/bin/sh
# Renders deploy/chart with its defaults into FOLDER/epp.yaml, which kustomize takes as
# a base: the chart is the one truth.
#
# Usage: deploy/kustomize/render.sh [FOLDER], by default base/ beside this file
set -eu
cd "$(dirname "$0")"
out=$(cd "${1:-base}" && pwd)/epp.yaml
helm=$(../../test/chart/install.sh)/bin/helm

# What helm says of itself does not hold here. The pool's name stands for that of an
# overlay; it is the value of the variable POOL and stands nowhere else.
{
	echo "# Made from deploy/chart by make kustomize."
	"$helm" template epp ../chart --namespace default --include-crds --set pool.name=my-pool |
		sed -e '/^ *helm.sh\/chart: /d' -e '/^ *app.kubernetes.io\/managed-by: Helm$/d' -e '/^# Source: /d' -e 's/ *$//'
} >"$out.new"
mv "$out.new" "$out"
