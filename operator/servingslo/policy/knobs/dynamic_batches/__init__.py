"""Limits of dynamic batches (Triton): set on servers while they run, and gone when one restarts.

Begin with `trial`; `search` finds limits, `servers` is what stands on each pod.
Does not import the limits of engines, nor the bound in flight.
"""
