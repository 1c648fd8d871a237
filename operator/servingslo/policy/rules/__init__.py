"""Which rule asks for how many replicas, and what holds the count?

Begin with `requirement`; `step_down` says what is safe, `zero` decides about none.
Must not import a knob: observations of a knob come as `facts`.
"""
