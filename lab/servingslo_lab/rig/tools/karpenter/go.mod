module servingslo.dev/rig/karpenter

go 1.27.0

require sigs.k8s.io/karpenter v1.15.0
