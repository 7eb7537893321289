{{- define "epp.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* 52 bytes leave room for "-pickers" and a StatefulSet's own labels. */}}
{{- define "epp.fullname" -}}
{{- $name := include "epp.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "epp.account" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "epp.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "epp.selector" -}}
app.kubernetes.io/name: {{ include "epp.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "epp.labels" -}}
{{ include "epp.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "epp.poolNamespace" -}}
{{- default .Release.Namespace .Values.pool.namespace }}
{{- end }}

{{- define "epp.kind" -}}
{{- ternary "StatefulSet" "Deployment" .Values.reports.enabled }}
{{- end }}

{{- define "epp.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The picker's file: the settings of values.config, and those that the chart sets. */}}
{{- define "epp.config" -}}
{{- $c := deepCopy .Values.config }}
{{- $_ := set $c "listen" (dict "proxy" (ternary ":8080" "" .Values.proxy.enabled) "metrics" ":9090" "extProc" ":9002" "health" ":9003" "reports" (ternary ":9004" "" .Values.reports.enabled)) }}
{{- $t := dict "drain" (printf "%ds" (int .Values.drainSeconds)) "finish" (printf "%ds" (int .Values.finishSeconds)) }}
{{- $_ = set $c "timeouts" (merge $t (default dict $c.timeouts)) }}
{{- if .Values.tls.insecure }}
{{- $_ = set $c "tls" (dict "insecure" true) }}
{{- else if .Values.tls.secret }}
{{- $_ = set $c "tls" (dict "cert" "/etc/epp/tls/tls.crt" "key" "/etc/epp/tls/tls.key") }}
{{- end }}
{{- if .Values.tokenizer.volume }}
{{- $_ = set $c "tokenizer" (merge (dict "path" "/model") (default dict $c.tokenizer)) }}
{{- end }}
{{- if .Values.reports.enabled }}
{{- $r := dict }}
{{- if .Values.reports.tokenSecret }}{{ $_ = set $r "tokenFile" "/etc/epp/reports/token" }}{{ end }}
{{- if .Values.reports.clientCASecret }}{{ $_ = set $r "clientCA" "/etc/epp/agents/ca.crt" }}{{ end }}
{{- $_ = set $c "reports" (merge $r (default dict $c.reports)) }}
{{- end }}
{{- toYaml $c }}
{{- end }}

{{/* What the schema cannot say: values that only together are wrong. */}}
{{- define "epp.check" -}}
{{- if not .Values.pool.name }}
{{- fail "pool.name: is empty; name the InferencePool that is served: --set pool.name=NAME" }}
{{- end }}
{{- range $key, $instead := dict "listen" "proxy.enabled and reports.enabled" "tls" "tls.secret or tls.insecure" }}
{{- if hasKey $.Values.config $key }}
{{- fail (printf "config.%s: is the chart's to set; use %s" $key $instead) }}
{{- end }}
{{- end }}
{{- range $path, $instead := dict "kubernetes.pool" "pool.name and pool.namespace" "kubernetes.kubeconfig" "serviceAccount" "pool.endpoints" "pool.name, whose pods are the endpoints" "timeouts.drain" "drainSeconds" "timeouts.finish" "finishSeconds" "tokenizer.path" "tokenizer.volume" "reports.tokenFile" "reports.tokenSecret" "reports.clientCA" "reports.clientCASecret" }}
{{- $part := splitList "." $path }}
{{- if hasKey (default dict (index $.Values.config (first $part))) (last $part) }}
{{- fail (printf "config.%s: is the chart's to set; use %s" $path $instead) }}
{{- end }}
{{- end }}
{{- with .Values.config.weights }}
{{- $sum := 0.0 }}
{{- range . }}{{ $sum = addf $sum . }}{{ end }}
{{- if or (gt (subf $sum 1.0) 1e-9) (lt (subf $sum 1.0) -1e-9) }}
{{- fail (printf "config.weights: sum to %v; want 1" $sum) }}
{{- end }}
{{- end }}
{{- if and .Values.pool.create (not .Values.pool.matchLabels) }}
{{- fail "pool.matchLabels: is empty; pool.create needs the labels of the engines' pods" }}
{{- end }}
{{- if and .Values.pool.create (ne (include "epp.poolNamespace" .) .Release.Namespace) }}
{{- fail (printf "pool.namespace: %q is not the release's; a pool that pool.create makes names the picker's Service, which must be in its own namespace" .Values.pool.namespace) }}
{{- end }}
{{- if hasKey .Values.policy.spec "targetRef" }}
{{- fail "policy.spec.targetRef: is the chart's to set; use pool.name" }}
{{- end }}
{{- if and .Values.tls.secret .Values.tls.insecure }}
{{- fail "tls.insecure: true leaves tls.secret unused; remove one or the other" }}
{{- end }}
{{- if and .Values.istio.destinationRule.enabled .Values.tls.insecure }}
{{- fail "istio.destinationRule.enabled: is for a picker that serves TLS, which tls.insecure turns off; remove one or the other" }}
{{- end }}
{{- if .Values.reports.enabled }}
{{- if not (or .Values.reports.tokenSecret .Values.reports.clientCASecret) }}
{{- fail "reports.enabled: would take reports from anybody; set reports.tokenSecret or reports.clientCASecret too" }}
{{- end }}
{{- if not (or .Values.tls.secret .Values.tls.insecure) }}
{{- fail "reports.enabled: agents cannot check a certificate that is new at each start; set tls.secret, or tls.insecure inside a mesh" }}
{{- end }}
{{- if and .Values.reports.clientCASecret .Values.tls.insecure }}
{{- fail "reports.clientCASecret: needs TLS, which tls.insecure turns off; remove one or the other" }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail (printf "autoscaling.minReplicas: %d is more than maxReplicas, %d" (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- end }}
{{- end }}
