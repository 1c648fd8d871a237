"""How do new batch limits get into a pod template, and the former ones back?

The writer, the canary of one pod with its records, fields of a rollout.
Must not import gateways.
"""
