"""A real control plane, Prometheus and simulated engines as processes of this machine.

Start with ``servingslo.rig.cluster.Rig``; ``python -m servingslo.rig.build`` builds its programs.
"""
