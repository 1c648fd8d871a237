"""What is known and remembered of one workload at a tick, and how is a count found?

Begin with `context`, which gathers `signals`, `demand`, `state` and the model; `sizing` counts.
Must not import a rule or a knob: observations of a knob come as `facts`.
"""
