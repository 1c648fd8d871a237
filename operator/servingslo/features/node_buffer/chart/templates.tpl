{{- define "servingslo.node_buffer.args" }}
{{- if (.Values.nodeBuffer).maxReplicas }}
- --node-buffer-max-replicas={{ .Values.nodeBuffer.maxReplicas | int }}
{{- end }}
{{- end }}

{{- /* Of the operator's arguments; whatever the number is, what was written stays. */ -}}
{{- define "servingslo.node_buffer.writes" }}
{{- range . }}
{{- if hasPrefix "--node-buffer-max-replicas=" . }}
- --node-buffers
{{- end }}
{{- end }}
{{- end }}

{{- define "servingslo.node_buffer.release" }}
{{- if not (has "--node-buffers" .writes) }}
            - --no-node-buffers
{{- end }}
{{- end }}

{{- define "servingslo.node_buffer.rights" }}
{{- if (.Values.nodeBuffer).maxReplicas }}
# Replicas of buffers that their owners labelled.
- apiGroups: [autoscaling.x-k8s.io]
  resources: [capacitybuffers]
  verbs: [get, list, patch]
{{- end }}
{{- end }}
