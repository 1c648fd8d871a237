{{- define "servingslo.backlog.objects" }}
{{- with (.Values.backlog).queries }}
---
# A tenant names a queue of its namespace and writes no query: these are the administrator's.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ include "servingslo.name" $ }}-backlog
  namespace: {{ $.Release.Namespace }}
  labels: {{- include "servingslo.labels" $ | nindent 4 }}
spec:
  groups:
    - name: servingslo-backlog
      rules:
        {{- range . }}
        - record: servingslo:backlog_left
          expr: {{ printf "max(%s)" .expr | toJson }}
          labels: {{ dict $.Values.prometheus.labels.namespace .namespace "queue" .queue | toJson }}
        {{- end }}
{{- end }}
{{- end }}
