"""What a row of the guard is: traffic by seed, the fleet it is played on, and its past."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from servingslo.units import SECONDS_PER_DAY
from servingslo_lab.sim.bounds.oracle import interval_work
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.past import BIN_SECONDS, RECENT_BIN_SECONDS, Past
from servingslo_lab.sim.pools.fleet import AnyPools
from servingslo_lab.sim.scenario import WARM_SECONDS
from servingslo_lab.sim.traces.trace import Trace

# None of them is a seed of the benchmark (1 to 3), of the search for settings, or of the blind
# cases (31, 32).
SEEDS = (61, 62, 63, 64, 65, 66)
# Work a second of a replica at which a fleet begins; the bound is twice the busiest interval's.
BUSY_WORK, BOUND_FACTOR = 0.7, 2.0
# Seeds of the past are this far from those that are played; four traces are repeated to a day.
_OTHER_SEEDS, _TRACES = 1000, 4
# Of the planner's clock at second 0 of a row: a midnight, at which bins of all widths begin.
BEGIN_SECONDS = 20_000.0 * SECONDS_PER_DAY
KINDS = (
    "level", "rise", "burst once", "burst recurring", "mix", "slow pods", "clients", "pools",
    "production",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: traffic by seed, and the fleet it is played on.

    kind: of KINDS. knobs: batch limits and admission bounds are carried out too. unseen: no setting
    was chosen on it. pools: of prefill and decode; fleet is then the first. before: arrivals of the
    past by seed, up to second 0 of the trace; None for a day of the same kind from other seeds.
    """

    name: str
    kind: str
    fleet: FleetSpec
    traffic: Callable[[int], Trace]
    knobs: bool = False
    unseen: bool = False
    pools: AnyPools | None = None
    before: Callable[[int], Mapping[float, np.ndarray]] | None = None

    def played(self, seed: int) -> tuple[Trace, FleetSpec]:
        """The trace of this seed, and the fleet with its first and its largest count."""
        trace = self.traffic(seed)
        return trace, _sized(self.fleet, trace)

    def past(self, seed: int) -> Past:
        """What Prometheus remembers when the row begins."""
        rates = self._like_it(seed) if self.before is None else self.before(seed)
        return Past(
            begin_seconds=BEGIN_SECONDS,
            rates_per_second=tuple(rates[BIN_SECONDS].tolist()),
            recent_per_second=tuple(rates.get(RECENT_BIN_SECONDS, np.empty(0)).tolist()),
        )

    def _like_it(self, seed: int) -> dict[float, np.ndarray]:
        traces = [self.traffic(seed + _OTHER_SEEDS + number) for number in range(_TRACES)]
        found = {}
        for width in (BIN_SECONDS, RECENT_BIN_SECONDS):
            once = np.concatenate([rates_of(trace, width) for trace in traces])
            found[width] = np.resize(once, round(SECONDS_PER_DAY / width))
        return found


def rates_of(trace: Trace, width: float) -> np.ndarray:
    """Requests per second of each bin, as far as Prometheus' longest bins are whole."""
    count = round(trace.duration_seconds // BIN_SECONDS * BIN_SECONDS / width)
    bins = (trace.arrival_seconds / width).astype(int)
    return np.bincount(bins, minlength=count)[:count] / width


def traffic_digest(trace: Trace) -> str:
    """Of every arrival, length and session: whether two runs were played the same requests."""
    return hashlib.sha256(b"".join(_columns(trace))).hexdigest()[:16]


def _columns(trace: Trace) -> Iterator[bytes]:
    yield np.round(trace.arrival_seconds, 3).tobytes()
    for column in (trace.prompt_tokens, trace.output_tokens, trace.sessions, trace.shared_tokens):
        yield b"" if column is None else column.tobytes()


def _sized(fleet: FleetSpec, trace: Trace) -> FleetSpec:
    work = interval_work(fleet, trace)
    first = work[: max(round(WARM_SECONDS / fleet.scrape_interval_seconds), 1)]
    most = math.ceil(BOUND_FACTOR * float(work.max()) / BUSY_WORK)
    started = max(math.ceil(float(first.max()) / BUSY_WORK), 1)
    return replace(fleet, initial_replicas=min(started, most), max_replicas=most)
