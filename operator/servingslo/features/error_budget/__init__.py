"""How many requests may miss any objective over days, what is left of it, how fast does it burn?

Only reported; a target that is stated is the promised share. `reader` asks Prometheus, `report`
has the windows of burn rates.
Must not import another feature.
"""
