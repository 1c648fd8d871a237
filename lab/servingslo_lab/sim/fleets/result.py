"""The result of a simulated run: share of requests in SLO, and its cost."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servingslo.models.engine.service_time import FloatArray
from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.layout import EngineRow, Requests

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
_SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The fleet at one tick of the autoscaler, after its decision."""

    time_seconds: float
    desired: int
    ready: int
    running: int
    waiting: int


def tick_of(now_seconds: float, desired: int, rows: list[EngineRow]) -> Tick:
    """The fleet of these engines now."""
    return Tick(
        time_seconds=now_seconds,
        desired=desired,
        ready=len(rows),
        running=sum(int(row.ints[layout.RUNNING]) for row in rows),
        waiting=sum(int(row.ints[layout.WAITING_COUNT]) for row in rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The truth about a run. Arrays have one entry for each request of the trace, in its order.

    ttft_seconds is infinite for requests without a first token, tpot_seconds for those that did
    not finish. replica_seconds: paid within duration_seconds, from the order of a pod on.
    attempts: how often each request was sent, None if clients send once. class_names: of each
    request; None if the fleet has no classes.
    """

    duration_seconds: float
    replica_seconds: float
    arrival_seconds: FloatArray
    ttft_seconds: FloatArray
    tpot_seconds: FloatArray
    latency_seconds: FloatArray
    status: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    output_tokens: FloatArray
    ticks: tuple[Tick, ...]
    attempts: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None = None
    class_names: tuple[str, ...] | None = None

    def good(
        self, ttft_seconds: float, tpot_seconds: float, latency_seconds: float = math.inf
    ) -> BoolArray:
        """Which requests finished within all thresholds; infinite means no objective."""
        met: BoolArray = (
            (self.ttft_seconds <= ttft_seconds)
            & (self.tpot_seconds <= tpot_seconds)
            & (self.latency_seconds <= latency_seconds)
            & (self.status == layout.FINISHED)
        )
        return met

    def share_in_slo(
        self, ttft_seconds: float, tpot_seconds: float, latency_seconds: float = math.inf
    ) -> float:
        """Share of all requests that met all objectives; 1 for a trace without requests."""
        good = self.good(ttft_seconds, tpot_seconds, latency_seconds)
        return float(good.mean()) if len(good) else 1.0

    def minutes(
        self, ttft_seconds: float, tpot_seconds: float, latency_seconds: float = math.inf
    ) -> FloatArray:
        """Share in SLO of the requests of each minute of arrival; NaN if none arrived."""
        good = self.good(ttft_seconds, tpot_seconds, latency_seconds)
        minute = (self.arrival_seconds // _SECONDS_PER_MINUTE).astype(np.int64)
        count = int(np.ceil(self.duration_seconds / _SECONDS_PER_MINUTE))
        offered = np.bincount(minute, minlength=count)
        met = np.bincount(minute, weights=good, minlength=count)
        shares = np.full(len(offered), np.nan)
        np.divide(met, offered, out=shares, where=offered > 0)
        return shares

    @property
    def scale_actions(self) -> int:
        """How often the wanted number of replicas changed."""
        wanted = [tick.desired for tick in self.ticks]
        return sum(a != b for a, b in pairwise(wanted))

    @property
    def replica_hours(self) -> float:
        """Paid replica-hours."""
        return self.replica_seconds / SECONDS_PER_HOUR

    @property
    def finished_output_tokens(self) -> float:
        """Tokens of finished answers."""
        return float(self.output_tokens[self.status == layout.FINISHED].sum())


def results_of(
    q: Requests,
    *,
    duration_seconds: float,
    replica_seconds: float,
    ticks: tuple[Tick, ...],
    class_names: tuple[str, ...] | None = None,
) -> RunResult:
    """The result of a run whose requests are in this table."""
    arrival = np.asarray(q.arrival, dtype=np.float64)
    first = np.asarray(q.first_token, dtype=np.float64)
    finish = np.asarray(q.finish, dtype=np.float64)
    output = np.asarray(q.output, dtype=np.float64)
    status = np.asarray(q.status, dtype=np.int64)
    finished = status == layout.FINISHED
    gaps = np.maximum(output - 1, 1)
    return RunResult(
        duration_seconds=duration_seconds,
        replica_seconds=replica_seconds,
        arrival_seconds=arrival,
        ttft_seconds=np.where(first >= 0, first - arrival, np.inf),
        tpot_seconds=np.where(finished, (finish - first) / gaps, np.inf),
        latency_seconds=np.where(finished, finish - arrival, np.inf),
        status=status,
        output_tokens=output,
        ticks=ticks,
        class_names=class_names,
    )
