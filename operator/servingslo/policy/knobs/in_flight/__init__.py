"""How many requests may be in flight: what replicas can take, and who enforces it.

`admission` says how many, `gateway` has a proxy refuse the others, `engines` the engines. Does
not import dynamic batches.
"""
