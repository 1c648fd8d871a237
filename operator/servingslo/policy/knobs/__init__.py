"""All decisions other than the replica count: one folder each, and a row in `catalogue`.

`protocol` is the interface of a knob, `decisions` its output, `comparison` compares pods that try a
setting with the others. No knob imports planner, stages, verdict or stored state.
"""
