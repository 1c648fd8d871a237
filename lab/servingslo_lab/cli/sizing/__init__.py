"""How many replicas do these objectives need, and at what price?

`servingslo size`, `servingslo explain --sweep`: inputs of flags or of a live resource, the answer,
prices, text. Must not import the commands.
"""
