"""Limits of dynamic batches (Triton): set on running servers, and lost when one restarts.

Begin with `trial`; `search` finds limits, `servers` reads each pod's current limits. Does not
import the limits of engines, nor the bound in flight.
"""
