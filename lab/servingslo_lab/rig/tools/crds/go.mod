module servingslo.dev/rig/crds

go 1.26.1

require (
	github.com/argoproj/argo-rollouts v1.10.1
	github.com/envoyproxy/gateway v1.9.1
	github.com/kedacore/keda/v2 v2.21.0
	istio.io/api v1.31.4
	sigs.k8s.io/gateway-api v1.6.3
)
