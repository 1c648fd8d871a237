"""KEDA: the external scaler that KEDA's operator calls."""
