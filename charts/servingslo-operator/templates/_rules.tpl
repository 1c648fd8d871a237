{{- /* What the operator may do, in the whole cluster or in each watched namespace. */ -}}
{{- define "servingslo.rules" -}}
- apiGroups: [servingslo.dev]
  resources: [servingslos]
  verbs: [get, list, watch]
- apiGroups: [servingslo.dev]
  resources: [servingslos/status]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [deployments, statefulsets, replicasets]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [deployments/scale, statefulsets/scale]
  verbs: [get, patch]
{{- if and .Values.configMaps.read.enabled (not .Values.configMaps.read.namespaces) }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
{{- end }}
{{- range .Values.extraScalableKinds }}
- apiGroups: [{{ .apiGroup | quote }}]
  resources: [{{ .resource | quote }}]
  verbs: [get, list, watch]
- apiGroups: [{{ .apiGroup | quote }}]
  resources: [{{ printf "%s/scale" .resource | quote }}]
  verbs: [get, patch]
{{- end }}
{{- if has "BackendTrafficPolicy" .Values.admission.kinds }}
- apiGroups: [gateway.envoyproxy.io]
  resources: [backendtrafficpolicies]
  verbs: [get, list, patch]
# Where a policy's route leads.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get]
{{- end }}
{{- if has "DestinationRule" .Values.admission.kinds }}
- apiGroups: [networking.istio.io]
  resources: [destinationrules]
  verbs: [get, list, patch]
{{- end }}
{{- $rights := include "servingslo.features.rights" . }}
{{- $rights }}
{{- if and (or (has "BackendTrafficPolicy" .Values.admission.kinds) (has "DestinationRule" .Values.admission.kinds)) (not (contains "[services]" $rights)) }}
# Whether what a bound is for is the workload, and it alone.
- apiGroups: [""]
  resources: [services]
  verbs: [get]
{{- end }}
{{- if eq .Values.gateway.profile "envoy-gateway" }}
# Whether the gateway counts requests to a workload without pods: how its route is routed.
- apiGroups: [gateway.envoyproxy.io]
  resources: [backendtrafficpolicies]
  verbs: [list]
- apiGroups: [gateway.envoyproxy.io]
  resources: [envoyproxies]
  verbs: [get]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes, grpcroutes, gateways, gatewayclasses]
  verbs: [get]
{{- end }}
# Who else scales the same target.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# Only for a StatefulSet that has fewer pods than it asks for: why, is nowhere else.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# Which operator of the cluster acts in a namespace. It is created by its path, so that the name limits
# that as well.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [servingslo-acting-operator]
  verbs: [create, get, patch, update]
{{- end }}
