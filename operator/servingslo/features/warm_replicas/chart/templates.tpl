{{- /* Absent with --reuse-values. */ -}}
{{- define "servingslo.warm_replicas.args" }}
{{- $warm := .Values.warm | default dict }}
{{- $ranges := $warm.ranges | default list }}
{{- if .Release.IsUpgrade }}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "servingslo.name" .) }}
{{- range $container := dig "spec" "template" "spec" "containers" list $running }}
{{- if and (has "--warm-replicas" ($container.args | default list)) (not $ranges) }}
{{- fail "warm.ranges: nothing is not allowed; allowed: a first upgrade with warm.enabled: false alone, which wakes the engines" }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $warm.enabled (not $ranges) }}
{{- fail "warm.ranges: nothing is not allowed; allowed: the addresses of pods, or enabled: false" }}
{{- end }}
{{- if $warm.enabled }}
- --warm-replicas
{{- end }}
{{- range $ranges }}
- --warm-range={{ . }}
{{- end }}
{{- if $ranges }}
- --warm-port={{ $warm.port | default 8000 }}
{{- end }}
{{- end }}

{{- define "servingslo.warm_replicas.rights" }}
{{- if (.Values.warm).ranges }}
# The label that keeps requests from a pod whose engine sleeps, and who set it.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
{{- end }}

{{- define "servingslo.warm_replicas.egress" }}
    {{- with (.Values.warm).ranges }}
    - to:
        {{- range . }}
        - ipBlock: {cidr: {{ . | quote }}}
        {{- end }}
      ports:
        - {protocol: TCP, port: {{ $.Values.warm.port | default 8000 }}}
    {{- end }}
{{- end }}
