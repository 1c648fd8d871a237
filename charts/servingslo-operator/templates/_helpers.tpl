{{- define "servingslo.shortName" -}}
{{ .Values.nameOverride | default "servingslo-operator" | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- define "servingslo.name" -}}
{{- /* Release "servingslo" gives servingslo-operator, not servingslo-servingslo-operator. */ -}}
{{- $short := include "servingslo.shortName" . -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if hasPrefix .Release.Name $short }}{{ $short }}
{{- else if contains $short .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $short | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- define "servingslo.image" -}}
{{- with .Values.image -}}
{{- with ($.Values.global).imageRegistry | default .registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}
{{- /* Values that are new since a release was installed are absent with --reuse-values. */ -}}
{{- /* A part of them leaves the rest of the defaults in force. */ -}}
{{- define "servingslo.podSecurityContext" -}}
{{- $default := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $default (deepCopy (.Values.podSecurityContext | default dict))) }}
{{- end }}
{{- define "servingslo.securityContext" -}}
{{- $default := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $default (deepCopy (.Values.securityContext | default dict))) }}
{{- end }}
{{- define "servingslo.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "servingslo.name" .) }}
{{- end }}
{{- /* Pods that decide, of which a feature may want several; and with them those that stand by. */ -}}
{{- define "servingslo.deciders" -}}
{{ include "servingslo.features.deciders" . | trim | default "1" }}
{{- end }}
{{- define "servingslo.pods" -}}
{{- $deciders := include "servingslo.deciders" . | int -}}
{{ ternary (add (int .Values.replicaCount) $deciders -1) 0 (gt (int .Values.replicaCount) 0) }}
{{- end }}
{{- define "servingslo.selector" -}}
app.kubernetes.io/name: {{ include "servingslo.shortName" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "servingslo.labels" -}}
{{ include "servingslo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- range $name, $value := .Values.commonLabels }}
{{- if has $name (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart") }}
{{- fail (printf "commonLabels: %s is not allowed; allowed: labels that the chart does not set" $name) }}
{{- end }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- define "servingslo.podLabels" -}}
{{- $own := include "servingslo.labels" . | fromYaml -}}
{{- range $name, $_ := .Values.podLabels -}}
{{- if hasKey $own $name }}
{{- fail (printf "podLabels: %s is not allowed; allowed: labels that the chart does not set" $name) }}
{{- end -}}
{{- end -}}
{{- toYaml .Values.podLabels }}
{{- end }}
{{- define "servingslo.arguments" -}}
{{- if .Values.runtimes -}}
- --runtime-profiles=/etc/servingslo/runtimes/runtimes.yaml
{{ end -}}
- run
- --prometheus-url={{ .Values.prometheus.url }}
- --prometheus-timeout-seconds={{ .Values.prometheus.timeoutSeconds }}
- --prometheus-namespace-label={{ .Values.prometheus.labels.namespace }}
- --prometheus-pod-label={{ .Values.prometheus.labels.pod }}
{{- with .Values.prometheus.tenant }}
- {{ printf "--prometheus-tenant=%s" . | quote }}
{{- end }}
{{- with .Values.prometheus.matchers }}
- {{ printf "--prometheus-matchers=%s" . | quote }}
{{- end }}
{{- if .Values.prometheus.bearerTokenSecret }}
{{- with .Values.prometheus.bearerTokenFile }}
{{- fail (printf "prometheus.bearerTokenFile: %s is not allowed; allowed: '' with bearerTokenSecret" .) }}
{{- end }}
- --prometheus-bearer-token-file=/var/run/prometheus/token/token
{{- end }}
{{- with .Values.prometheus.bearerTokenFile }}
- {{ printf "--prometheus-bearer-token-file=%s" . | quote }}
{{- end }}
{{- if .Values.prometheus.basicAuthSecret }}
- --prometheus-username-file=/var/run/prometheus/basic/username
- --prometheus-password-file=/var/run/prometheus/basic/password
{{- end }}
{{- if .Values.prometheus.caConfigMap }}
{{- with .Values.prometheus.caFile }}
{{- fail (printf "prometheus.caFile: %s is not allowed; allowed: '' with caConfigMap" .) }}
{{- end }}
- --prometheus-ca-file=/var/run/prometheus/ca/ca.crt
{{- end }}
{{- with .Values.prometheus.caFile }}
- {{ printf "--prometheus-ca-file=%s" . | quote }}
{{- end }}
- --gateway-profile={{ .Values.gateway.profile }}
{{- with .Values.gateway.labels.workload }}
- --gateway-workload-label={{ . }}
{{- end }}
{{- with .Values.gateway.labels.namespace }}
- --gateway-namespace-label={{ . }}
{{- end }}
{{- with .Values.gateway.reporter }}
- --gateway-reporter={{ . }}
{{- end }}
{{- with .Values.gateway.pattern }}
- {{ printf "--gateway-pattern=%s" . | quote }}
{{- end }}
- --tick-seconds={{ .Values.tickSeconds }}
- --mode={{ .Values.mode }}
- --batching-apply={{ .Values.batching.apply.enabled }}
{{- if .Values.batching.apply.serversOnly }}
- --batching-servers-only=true
{{- end }}
- --read-config-maps={{ .Values.configMaps.read.enabled }}
{{- range .Values.admission.kinds }}
- --admission-kind={{ . }}
{{- end }}
{{- include "servingslo.features.args" . }}
{{- with .Values.limits.maxReplicas }}
- --max-replicas={{ int64 . }}
{{- end }}
{{- with .Values.limits.maxStep }}
- --max-step={{ int64 . }}
{{- end }}
- --max-priority={{ int .Values.limits.maxPriority }}
{{- range .Values.watchNamespaces }}
- --namespace={{ . }}
{{- end }}
- --lease-namespace={{ .Release.Namespace }}
- --lease-name={{ include "servingslo.name" . }}
- --lease-seconds={{ .Values.leaderElection.leaseSeconds }}
- --lease-renew-seconds={{ .Values.leaderElection.renewSeconds }}
- --lease-retry-seconds={{ .Values.leaderElection.retrySeconds }}
- --log-level={{ .Values.logLevel | default "INFO" }}
- --log-format={{ .Values.logFormat }}
- "--health-host={{ ternary "127.0.0.1" "::" (eq (include "servingslo.port" .) "https") }}"
- --health-port=8080
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- define "servingslo.resources" -}}
{{- /* What values.yaml says of expectedPods; what stands under resources wins. */ -}}
{{- $mebibytes := add 256 (div (int .Values.expectedPods) 4) }}
{{- $derived := dict }}
{{- if not (dig "limits" "memory" "" .Values.resources) }}
{{- $_ := set $derived "limits" (dict "memory" (printf "%dMi" $mebibytes)) }}
{{- $_ := set $derived "requests" (dict "memory" (printf "%dMi" (div $mebibytes 2))) }}
{{- end }}
{{- toYaml (mergeOverwrite $derived (deepCopy .Values.resources)) }}
{{- end }}
