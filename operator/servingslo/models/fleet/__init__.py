"""Which replica count suffices?

Percentiles of a fleet under a load, and the frontier: the greatest rate that keeps an objective.
Above the packages of laws; must not import disaggregated, estimation or policy.
"""
