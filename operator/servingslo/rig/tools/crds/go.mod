module servingslo.dev/rig/crds

go 1.26.0

require (
	github.com/envoyproxy/gateway v1.9.1
	github.com/kedacore/keda/v2 v2.21.0
	sigs.k8s.io/gateway-api v1.6.3
)
