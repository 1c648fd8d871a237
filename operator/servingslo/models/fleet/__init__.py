"""Which replica count suffices?

Percentiles of a fleet under a load, and the frontier: the greatest rate that keeps an objective.
Above all other packages of models; must not import estimation or policy.
"""
