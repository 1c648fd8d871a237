module servingslo.dev/rig/kserve

go 1.26.1

require github.com/kserve/kserve v0.20.0
