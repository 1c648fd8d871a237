"""How does KEDA get the count?

The external scaler that KEDA's operator calls, and its messages on the wire.
Must not import adapters of Kubernetes or Prometheus.
"""
