"""Pure decisions: `plan()` makes one decision from one observation and carries the rest as state.

Here: the parts of a tick (inputs, facts, context, state) and its course (planner, stages, verdict,
report). The count is in `replicas`, all other settings in `knobs`. Reads no clock, does no I/O, and
imports neither `explain` nor anything above.
"""
