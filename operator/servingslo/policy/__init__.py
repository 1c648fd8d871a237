"""Which count and settings follow from one observation?

Parts of a tick (inputs, facts, state), its course (planner, stages); rooms: replicas, knobs.
Must not import explain or anything above; reads no clock, does no I/O.
"""
