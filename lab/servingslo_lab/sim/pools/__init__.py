"""Prefill and decode in pools of their own: disaggregated serving."""
