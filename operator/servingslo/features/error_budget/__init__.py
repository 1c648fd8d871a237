"""How many requests may miss any objective over days, what is left of it, how fast does it burn?

Only reported; a stated target is promised. `reader` asks Prometheus, `report` has burn rates.
Must not import another feature.
"""
