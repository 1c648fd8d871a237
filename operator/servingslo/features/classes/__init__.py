"""Which classes of requests are refused first, and how many of each may be in flight?

`decision` divides the fleet's bound by priority; `knob` decides when a lane is written.
Must not import another feature.
"""
