"""Which limits should dynamic batches (Triton) have? A server that restarts loses them.

Begin with `knob`; `search` finds limits, `servers` reads each pod's current limits.
Must not import the limits of engines, nor the bound in flight.
"""
