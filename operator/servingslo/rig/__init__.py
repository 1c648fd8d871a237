"""A real control plane, Prometheus and simulated engines as processes of this machine."""
