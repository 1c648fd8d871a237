"""Reads the engines of the whole cluster from Prometheus."""
