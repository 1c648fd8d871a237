"""A trial of a new setting: one pod first, compared with its siblings, then everywhere or back.

`stages` decides what happens to it next, `comparison` whether the pod serves worse.
Must not import a knob: a knob says what its setting is, and which pods have it.
"""
