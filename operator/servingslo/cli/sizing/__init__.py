"""Sizing before deployment: inputs, answer, prices of objectives, and how they are told."""
