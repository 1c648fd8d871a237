{{- define "servingslo.batch_limits.rights" }}
{{- if and .Values.batching.apply.enabled (not .Values.batching.apply.serversOnly) }}
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [patch]
{{- end }}
{{- end }}

{{- /* Of the operator's arguments: what `servingslo release` is to put back. */ -}}
{{- define "servingslo.batch_limits.writes" }}
{{- if and (has "--batching-apply=true" .) (not (has "--batching-servers-only=true" .)) }}
- --canaries
{{- end }}
{{- end }}

{{- define "servingslo.batch_limits.release" }}
{{- if and (eq .hook "pre-upgrade") (not (has "--canaries" .writes)) }}
            - --no-canaries
{{- end }}
{{- end }}
