module servingslo.dev/rig/crds

go 1.26.0

require (
	github.com/envoyproxy/gateway v1.9.1
	sigs.k8s.io/gateway-api v1.6.3
)
