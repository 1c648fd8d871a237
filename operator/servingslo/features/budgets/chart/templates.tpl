{{- define "servingslo.budgets.roles" }}
{{- if (.Values.budgets).enabled }}
{{- if not .Values.rbac.clusterRoles }}
{{- fail "budgets.enabled: true is not allowed; allowed: false with rbac.clusterRoles: false" }}
{{- end }}
# Budgets are the administrator's and cluster-scoped; namespaces are selected by their labels.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "servingslo.name" . }}-budgets
  labels: {{- include "servingslo.labels" . | nindent 4 }}
rules:
  - apiGroups: [servingslo.dev]
    resources: [servingbudgets]
    verbs: [get, list, watch]
  - apiGroups: [servingslo.dev]
    resources: [servingbudgets/status]
    verbs: [patch]
  - apiGroups: [""]
    resources: [namespaces]
    {{- with .Values.watchNamespaces }}
    resourceNames: {{- toYaml . | nindent 6 }}
    {{- end }}
    verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "servingslo.name" . }}-budgets
  labels: {{- include "servingslo.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "servingslo.name" . }}-budgets
subjects:
  - kind: ServiceAccount
    name: {{ include "servingslo.serviceAccount" . }}
    namespace: {{ .Release.Namespace }}
---
{{- end }}
{{- end }}
