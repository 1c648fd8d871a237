"""Step times of measured kernels, for tests of the law that bends and of what is planned by it."""

import json
from pathlib import Path

import numpy as np

from servingslo.models.engine.law_fit import Steps
from servingslo_lab.sim.replicas.step_table import StepTable, step_table

_FILE = Path(__file__).parents[1] / "golden" / "data" / "step_times_h100.json"
# Largest prefill of a step that laws are judged by, in tokens.
MOST_PREFILL = 4096.0
EXPERTS, DENSE = "experts", "dense"


def rows(name: str) -> list[tuple[float, float, float, float]]:
    """Sequences, context tokens of each, prefill tokens of the step, seconds."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))["tables"][name]["rows"]
    return [(n, k, p, milliseconds / 1e3) for n, k, p, milliseconds in found]


def steps(name: str, most_sequences: float = 256.0) -> Steps:
    """The table's steps, up to so many sequences."""
    kept = [row for row in rows(name) if row[2] <= MOST_PREFILL and row[0] <= most_sequences]
    n, k, p, seconds = np.array(kept, dtype=float).T
    ones = np.ones_like(n)
    return Steps(n, p, k, seconds, ones, ones)


def table(name: str) -> StepTable:
    """The table as a simulated engine follows it."""
    return step_table(rows(name))
