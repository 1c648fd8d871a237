"""Fitting a service law: where samples come from, the fit, and how it is told."""
