"""Everything that is decided beside the replica count: one folder each, and a row in `catalogue`.

`protocol` is what a knob answers, `decisions` what it hands out, `comparison` how pods that try
something are compared with the others. No knob imports planner, stages, verdict or stored state.
"""
