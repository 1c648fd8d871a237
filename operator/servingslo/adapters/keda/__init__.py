"""KEDA: the external scaler that its operator asks."""
