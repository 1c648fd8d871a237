"""What do the engines' own APIs change, if the administrator allows it?

The channel to a pod, and Triton's model repository.
Must not import adapters of KEDA or Prometheus.
"""
