"""A real control plane, Prometheus and simulated engines as processes of this machine.

Start with ``servingslo_lab.rig.cluster.Rig``.
``python -m servingslo_lab.rig.build`` builds its programs.
"""
