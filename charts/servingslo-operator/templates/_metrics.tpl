{{- /* Where /metrics, /healthz and /readyz are reached: at the operator, or at a proxy that asks for a token. */ -}}
{{- define "servingslo.port" -}}
{{ ternary "https" "http" (eq (toString (.Values.metricsAuthorization).enabled) "true") }}
{{- end }}
{{- define "servingslo.portNumber" -}}
{{ ternary 8443 8080 (eq (include "servingslo.port" .) "https") }}
{{- end }}
{{- define "servingslo.probe" -}}
{{- /* By number at the proxy: a probe finds names of its own container alone. */ -}}
port: {{ ternary 8443 "http" (eq (include "servingslo.port" .) "https") }}{{ if eq (include "servingslo.port" .) "https" }}, scheme: HTTPS{{ end }}
{{- end }}
{{- define "servingslo.metricsProxy" -}}
- name: metrics-proxy
  image: {{ .Values.metricsAuthorization.image | quote }}
  args:
    - --secure-listen-address=:8443
    - --upstream=http://127.0.0.1:8080/
    - --ignore-paths=/healthz,/readyz
  ports:
    - {name: https, containerPort: 8443}
  securityContext: {{- include "servingslo.securityContext" . | nindent 4 }}
  resources:
    requests: {cpu: 5m, memory: 32Mi}
    limits: {memory: 64Mi}
{{- end }}
{{- define "servingslo.metricsRoles" -}}
{{- if not .Values.rbac.clusterRoles }}
{{- fail "metricsAuthorization.enabled: true is not allowed; allowed: false with rbac.clusterRoles: false" }}
{{- end }}
# The proxy asks the API server whose token it is, and whether they may get /metrics.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "servingslo.name" . }}-metrics-proxy
  labels: {{- include "servingslo.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:auth-delegator
subjects:
  - kind: ServiceAccount
    name: {{ include "servingslo.serviceAccount" . }}
    namespace: {{ .Release.Namespace }}
---
# For the account of Prometheus; the administrator binds it.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "servingslo.name" . }}-metrics-reader
  labels: {{- include "servingslo.labels" . | nindent 4 }}
rules:
  - nonResourceURLs: [/metrics]
    verbs: [get]
---
{{- end }}
