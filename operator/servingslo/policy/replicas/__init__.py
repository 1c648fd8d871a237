"""The replica count: signals, the demand to plan for, the least safe count, and its guards.

Begin with `requirement`, which uses `demand`, `sizing` and `step_down`; then `guards`. Imports no
knob: observations of a knob come as `facts`.
"""
