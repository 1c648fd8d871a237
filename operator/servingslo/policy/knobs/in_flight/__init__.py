"""How many requests may be in flight, and who enforces it?

`admission` computes how many; `gateway` has a proxy refuse the others, `engines` the engines.
Must not import dynamic batches.
"""
