"""Write traces to files, in the plain form that `trace` reads."""

import csv
from pathlib import Path

import numpy as np

from servingslo_lab.sim.traces.cells import LONGEST_FIRST_GAP_SECONDS
from servingslo_lab.sim.traces.trace import FROM_START_COLUMN, PLAIN_COLUMNS, IntArray, Trace


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace in the plain form."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        extra: dict[str, tuple[str, ...] | IntArray | None] = {
            "class": trace.class_names,
            "priority": trace.priorities,
            "session": trace.sessions,
            "shared_tokens": trace.shared_tokens,
        }
        known = {name: values for name, values in extra.items() if values is not None}
        if len(trace) and trace.arrival_seconds[0] > LONGEST_FIRST_GAP_SECONDS:
            known[FROM_START_COLUMN] = np.ones(len(trace), dtype=np.int64)
        writer.writerow([*PLAIN_COLUMNS, *known])
        for i in range(len(trace)):
            row = [
                f"{trace.arrival_seconds[i]:.3f}", trace.prompt_tokens[i], trace.output_tokens[i],
            ]  # fmt: skip
            writer.writerow([*row, *(values[i] for values in known.values())])
