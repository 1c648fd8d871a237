"""How do a real control plane, Prometheus and simulated engines run on this machine?

`cluster.Rig` starts it, `build` builds it; rooms: gateways, kubernetes, programs, simulated.
Must not import sim's policies or the lab's cli; every process ends with its program.
"""
