"""Which classes of requests are refused first, and how many of each may be in flight?

`bounds` divides the fleet's bound by priority; `knob` decides when a lane is written.
Must not import dynamic batches or batch limits.
"""
