"""How long does a request wait for its first token, or for its batch?

Steps, prompts before one's own, the wait for a slot, and servers of dynamic batches.
Must not import tokens or fleet.
"""
