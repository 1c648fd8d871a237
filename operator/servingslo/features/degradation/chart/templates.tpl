{{- define "servingslo.degradation.args" }}
{{- if (.Values.degradation).enabled }}
- --degradation=true
{{- end }}
{{- end }}

{{- define "servingslo.degradation.writes" }}
{{- if has "--degradation=true" . }}
- --degradation=true
{{- end }}
{{- end }}

{{- define "servingslo.degradation.release" }}
{{- if not (has "--degradation=true" .writes) }}
            - --no-degradation
{{- end }}
{{- end }}

{{- define "servingslo.degradation.rights" }}
{{- if (.Values.degradation).enabled }}
# Weights of a fallback, in routes that their owners labelled.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, patch]
# Whether what a bound is for is the workload, and it alone.
- apiGroups: [""]
  resources: [services]
  verbs: [get]
{{- end }}
{{- end }}
