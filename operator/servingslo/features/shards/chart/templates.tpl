{{- /* Absent with --reuse-values. */ -}}
{{- define "servingslo.shards.deciders" }}
{{- .Values.shards | default 1 }}
{{- end }}

{{- define "servingslo.shards.args" }}
{{- with include "servingslo.shards.deciders" . | int }}
{{- if gt . 1 }}
- --shards={{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* All that there may be: with fewer shards, those that are gone are emptied first. */ -}}
{{- define "servingslo.shards.leases" }}
      - {{ include "servingslo.name" . }}-next
{{- range untilStep 1 8 1 }}
      - {{ include "servingslo.name" $ }}-{{ . }}
{{- end }}
{{- end }}
