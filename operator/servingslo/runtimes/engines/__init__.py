"""Which metrics, flags and defaults does this engine have?

One profile for each engine, as data; vLLM's defaults by version and card.
Must not import the catalogue, or the profile of another engine.
"""
