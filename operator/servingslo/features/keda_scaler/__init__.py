"""How does KEDA get the count from the operator itself?

An external scaler that KEDA's operator calls over gRPC.
Must not import another feature.
"""
