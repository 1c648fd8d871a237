"""How many replicas are needed, and which guards hold the count?

Begin with `requirement`, which uses `demand`, `sizing` and `step_down`; then `guards`.
Must not import a knob: observations of a knob come as `facts`.
"""
