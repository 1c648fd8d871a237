"""The replica count: what is seen, the demand to plan for, the least safe count, and its guards.

Begin with `requirement`, which asks `demand`, `sizing` and `step_down`; then `guards`.
Imports no knob: what a knob saw comes as `facts`.
"""
