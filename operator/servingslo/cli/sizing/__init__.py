"""How many replicas do these objectives need, and at what price?

`servingslo size`: inputs from flags or a live resource, the answer, prices, text.
Must not import cluster or running.
"""
