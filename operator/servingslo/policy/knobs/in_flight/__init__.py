"""How many requests may be in flight: what replicas can take, and who enforces it.

`admission` computes how many; with `gateway` a proxy refuses the others, with `engines` the engines
do. Does not import dynamic batches.
"""
