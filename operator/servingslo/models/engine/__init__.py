"""How long is a step, how much load does one engine carry, and how much may enter?

The service law, capacity in closed form, the KV cache, admission.
Must not import any other package of models.
"""
