"""What does a step cost, how much does one engine carry, and how much may enter?

The service law, capacity in closed form, the KV cache, admission.
Must not import any other room of models.
"""
