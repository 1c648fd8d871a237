"""Which count and settings follow from one observation?

Parts of a tick (inputs, facts), its course (planner, stages); rooms: replicas, rules, knobs.
Must not import explain or anything above; reads no clock, does no I/O.
"""
