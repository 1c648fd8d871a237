"""Pure decisions: `plan()` makes one decision from one observation and carries the rest as state.

Here: what a tick is made of (inputs, facts, context, state) and how it runs (planner, stages,
verdict, report). The count is in `replicas`, all else that is set in `knobs`. Reads no clock, does
no I/O, and imports neither `explain` nor anything above.
"""
