"""Prefill and decode in separate pools: disaggregated serving."""
