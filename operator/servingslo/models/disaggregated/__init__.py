"""What do a prefill pool and a decode pool promise together, and which pair is the cheapest?

Laws of requests that pass both pools, the cheapest pair of counts, and each pool's thresholds.
Above all other packages of models; must not import estimation or policy.
"""
