"""What do prefill and decode pools do when prompts grow, and then answers?

Its system, its verdict, its picture; begin with `command`.
Must not import other scenarios.
"""
