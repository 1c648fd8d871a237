"""Trace-driven simulated engines and fleets."""
