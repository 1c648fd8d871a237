{{- /* Of features, from their folders: made by `make join`, not edited. */}}

{{- define "servingslo.features.deciders" }}
{{- include "servingslo.shards.deciders" . }}
{{- end }}

{{- define "servingslo.features.leases" }}
{{- include "servingslo.shards.leases" . }}
{{- end }}

{{- define "servingslo.features.args" }}
{{- include "servingslo.keda_scaler.args" . }}
{{- include "servingslo.shards.args" . }}
{{- include "servingslo.degradation.args" . }}
{{- include "servingslo.node_buffer.args" . }}
{{- include "servingslo.dynamic_batches.args" . }}
{{- include "servingslo.warm_replicas.args" . }}
{{- end }}

{{- define "servingslo.features.ports" }}
{{- include "servingslo.keda_scaler.ports" . }}
{{- end }}

{{- define "servingslo.features.mounts" }}
{{- include "servingslo.keda_scaler.mounts" . }}
{{- include "servingslo.dynamic_batches.mounts" . }}
{{- end }}

{{- define "servingslo.features.volumes" }}
{{- include "servingslo.keda_scaler.volumes" . }}
{{- include "servingslo.dynamic_batches.volumes" . }}
{{- end }}

{{- define "servingslo.features.rights" }}
{{- include "servingslo.batch_limits.rights" . }}
{{- include "servingslo.degradation.rights" . }}
{{- include "servingslo.node_buffer.rights" . }}
{{- include "servingslo.warm_replicas.rights" . }}
{{- end }}

{{- define "servingslo.features.roles" }}
{{- include "servingslo.budgets.roles" . }}
{{- end }}

{{- define "servingslo.features.ingress" }}
{{- include "servingslo.keda_scaler.ingress" . }}
{{- end }}

{{- define "servingslo.features.egress" }}
{{- include "servingslo.dynamic_batches.egress" . }}
{{- include "servingslo.warm_replicas.egress" . }}
{{- end }}

{{- define "servingslo.features.warnings" }}
{{- include "servingslo.dynamic_batches.warnings" . }}
{{- end }}

{{- define "servingslo.features.writes" }}
{{- include "servingslo.batch_limits.writes" . }}
{{- include "servingslo.degradation.writes" . }}
{{- include "servingslo.node_buffer.writes" . }}
{{- end }}

{{- define "servingslo.features.release" }}
{{- include "servingslo.batch_limits.release" . }}
{{- include "servingslo.degradation.release" . }}
{{- include "servingslo.node_buffer.release" . }}
{{- end }}

{{- define "servingslo.features.objects" }}
{{- include "servingslo.backlog.objects" . }}
{{- include "servingslo.keda_scaler.objects" . }}
{{- end }}

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

{{- define "servingslo.keda_scaler.args" }}
{{- with .Values.keda.externalScaler }}
{{- if .enabled }}
{{- if gt (include "servingslo.deciders" $ | int) 1 }}
{{- fail "keda.externalScaler.enabled: true is not allowed; allowed: false if several pods decide" }}
{{- end }}
- --keda-scaler-host=0.0.0.0
- --keda-scaler-port={{ .port }}
{{- if .tlsSecret }}
- --keda-scaler-certificate-file=/var/run/keda/tls/tls.crt
- --keda-scaler-key-file=/var/run/keda/tls/tls.key
{{- else if not .plainText }}
{{- fail "keda.externalScaler.tlsSecret: nothing is not allowed; allowed: the name of a Secret, or nothing with plainText: true" }}
{{- else }}
- --keda-scaler-plain-text=true
{{- end }}
{{- if .clientCASecret }}
{{- if not .tlsSecret }}
{{- fail (printf "keda.externalScaler.clientCASecret: %s is not allowed; allowed: '' without tlsSecret: plain text asks no client for a certificate" .clientCASecret) }}
{{- end }}
- --keda-scaler-client-ca-file=/var/run/keda/client-ca/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.ports" }}
{{- with .Values.keda.externalScaler }}
            {{- if .enabled }}
            - {name: keda, containerPort: {{ .port }}}
            {{- end }}
            {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.mounts" }}
{{- with .Values.keda.externalScaler }}
            {{- if and .enabled .tlsSecret }}
            - {name: keda-tls, mountPath: /var/run/keda/tls, readOnly: true}
            {{- end }}
            {{- if and .enabled .clientCASecret }}
            - {name: keda-client-ca, mountPath: /var/run/keda/client-ca, readOnly: true}
            {{- end }}
            {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.volumes" }}
{{- with .Values.keda.externalScaler }}
        {{- if and .enabled .tlsSecret }}
        - name: keda-tls
          secret: {secretName: {{ .tlsSecret }}}
        {{- end }}
        {{- if and .enabled .clientCASecret }}
        - name: keda-client-ca
          secret: {secretName: {{ .clientCASecret }}}
        {{- end }}
        {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.ingress" }}
{{- if .Values.keda.externalScaler.enabled }}
    - ports:
        - {protocol: TCP, port: keda}
    {{- end }}
{{- end }}

{{- define "servingslo.keda_scaler.objects" }}
{{- if .Values.keda.externalScaler.enabled }}
---
# Headless, so that KEDA's client tries each pod: the leader alone answers.
apiVersion: v1
kind: Service
metadata:
  name: {{ include "servingslo.name" . }}-keda
  namespace: {{ .Release.Namespace }}
  labels: {{- include "servingslo.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "servingslo.selector" . | nindent 4 }}
  ports:
    - {name: keda, port: {{ .Values.keda.externalScaler.port }}, targetPort: keda}
{{- end }}
{{- end }}

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

{{- define "servingslo.dynamic_batches.args" }}
{{- range .Values.engines.ranges }}
- --engine-range={{ . }}
{{- end }}
{{- if .Values.engines.keysSecret }}
- --engine-keys-directory=/var/run/engines/keys
{{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.mounts" }}
            {{- if .Values.engines.keysSecret }}
            - {name: engine-keys, mountPath: /var/run/engines/keys, readOnly: true}
            {{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.volumes" }}
        {{- if .Values.engines.keysSecret }}
        - name: engine-keys
          secret: {secretName: {{ .Values.engines.keysSecret }}}
        {{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.egress" }}
    {{- with .Values.engines.ranges }}
    - to:
        {{- range . }}
        - ipBlock: {cidr: {{ . | quote }}}
        {{- end }}
      ports:
        - {protocol: TCP, port: {{ dig "triton" "modelRepositoryPort" 8000 ($.Values.runtimes | default dict) }}}
    {{- end }}
{{- end }}

{{- define "servingslo.dynamic_batches.warnings" }}
{{- if and .Values.batching.apply.enabled .Values.batching.apply.serversOnly (not .Values.engines.ranges) }}
- batching.apply.serversOnly changes limits of running servers, and without engines.ranges it speaks to none.
{{- end }}
{{- end }}

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
