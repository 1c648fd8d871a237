"""What a row of the guard is: traffic by seed, and the fleet it is played on."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from servingslo.traces.trace import Trace
from servingslo_lab.sim.bounds.oracle import interval_work
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.scenario import WARM_SECONDS

# None of them is a seed of the benchmark (1 to 3), of the search for settings, or of the blind
# cases (31, 32).
SEEDS = (61, 62, 63, 64, 65, 66)
# Work a second of a replica at which a fleet begins; the bound is twice the busiest interval's.
BUSY_WORK, BOUND_FACTOR = 0.7, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: traffic by seed, and the fleet it is played on.

    knobs: batch limits and admission bounds are carried out too. unseen: no setting was chosen on
    it.
    """

    name: str
    fleet: FleetSpec
    traffic: Callable[[int], Trace]
    knobs: bool = False
    unseen: bool = False

    def played(self, seed: int) -> tuple[Trace, FleetSpec]:
        """The trace of this seed, and the fleet with its first and its largest count."""
        trace = self.traffic(seed)
        return trace, _sized(self.fleet, trace)


def traffic_digest(trace: Trace) -> str:
    """Of every arrival and length: whether two runs were played the same requests."""
    digest = hashlib.sha256(np.round(trace.arrival_seconds, 3).tobytes())
    digest.update(trace.prompt_tokens.tobytes())
    digest.update(trace.output_tokens.tobytes())
    return digest.hexdigest()[:16]


def _sized(fleet: FleetSpec, trace: Trace) -> FleetSpec:
    work = interval_work(fleet, trace)
    first = work[: max(round(WARM_SECONDS / fleet.scrape_interval_seconds), 1)]
    most = math.ceil(BOUND_FACTOR * float(work.max()) / BUSY_WORK)
    started = max(math.ceil(float(first.max()) / BUSY_WORK), 1)
    return replace(fleet, initial_replicas=min(started, most), max_replicas=most)
