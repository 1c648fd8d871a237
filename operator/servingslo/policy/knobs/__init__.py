"""Which settings other than the replica count should change?

A folder each and a row in `catalogue`; `protocol` is the interface, `decisions` the output.
Must not import planner, stages, verdict or stored state.
"""
