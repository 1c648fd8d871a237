"""Traffic on the simulated engines of one workload, and its true results.

Requests come from a trace and go directly into the engines, without HTTP. Each arrives at its own
time on the clock, for any tick interval of the host.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servingslo_lab.rig.simulated.gateway_metrics import RouteReading
from servingslo_lab.sim.fleets.service import Routing, Service, WhenNoEngine
from servingslo_lab.sim.replicas.engine import Outcome, RequestRecord
from servingslo_lab.sim.traces.trace import Trace, read_trace
from servingslo_lab.sim.traces.transforms import repeated, scaled, sped_up, with_surge

_RECENT_SECONDS = 30.0
_SECONDS_PER_MINUTE = 60.0
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """The rate is multiplied by factor from start to end, in seconds since the traffic began."""

    factor: float
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """The arrivals, and the pods that serve them.

    namespace, selector: the serving pods, by labels. trace: a CSV file. speed: factor of the
    trace's speed; scale: factor of its rate, by overlaid copies; both keep the lengths.
    start_seconds: start position in the trace. It is repeated until duration_seconds (of the clock)
    are filled. cached_ratio: share of every prompt in the prefix cache. ttft_seconds, tpot_seconds:
    objectives of a good request. route: name of the HTTPRoute under which a gateway counts it; None
    if no gateway is read. max_in_flight: the gateway refuses requests beyond this number in engines
    and gateway.
    """

    name: str
    namespace: str
    selector: Mapping[str, str]
    trace: Path
    speed: float = 1.0
    scale: float = 1.0
    start_seconds: float = 0.0
    duration_seconds: float = 3600.0
    surges: Sequence[Surge] = ()
    cached_ratio: float = 0.0
    routing: Routing = Routing.LEAST_LOADED
    when_no_engine: WhenNoEngine = WhenNoEngine.FAIL
    ttft_seconds: float = 1.0
    tpot_seconds: float = 0.05
    route: str | None = None
    max_in_flight: int | None = None
    seed: int = 0

    def arrivals(self) -> Trace:
        """The arrivals, in seconds since the beginning of the traffic."""
        rng = np.random.default_rng(self.seed)
        trace = scaled(sped_up(read_trace(self.trace), self.speed), self.scale, rng)
        begin = self.start_seconds / self.speed
        trace = repeated(trace, begin + self.duration_seconds)
        kept = trace.arrival_seconds >= begin
        trace = Trace(
            arrival_seconds=trace.arrival_seconds[kept] - begin,
            prompt_tokens=trace.prompt_tokens[kept],
            output_tokens=trace.output_tokens[kept],
            duration_seconds=self.duration_seconds,
        )
        for surge in self.surges:
            trace = with_surge(trace, surge.factor, surge.start_seconds, surge.end_seconds, rng)
        return trace


@dataclass(slots=True)
class Tally:
    """Requests of one minute, by arrival time."""

    offered: int = 0
    over: int = 0
    good: int = 0


@dataclass(slots=True)
class Truth:
    """The true results of requests, which no autoscaler can observe.

    A request is good if it finished within both objectives; refused, lost or aborted ones miss.
    Requests in flight are only in `offered`.
    """

    ttft_seconds: float
    tpot_seconds: float
    total: Tally = field(default_factory=Tally)
    minutes: list[Tally] = field(default_factory=list)
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    recent: deque[RequestRecord] = field(default_factory=deque)
    recent_arrivals: deque[float] = field(default_factory=deque)

    def offer(self, arrival: float) -> None:
        """Count an arrival, in seconds since the traffic began."""
        self.total.offered += 1
        self._minute(arrival).offered += 1
        self.recent_arrivals.append(arrival)

    def close(self, record: RequestRecord, began: float) -> None:
        """Count the end of a request."""
        good = record.meets(self.ttft_seconds, self.tpot_seconds)
        self.outcomes[record.outcome] += 1
        for tally in (self.total, self._minute(record.arrival_seconds - began)):
            tally.over += 1
            tally.good += good
        self.recent.append(record)

    def forget(self, now: float, began: float) -> None:
        """Drop records that are no longer recent."""
        while self.recent and self.recent[0].finish_seconds < now - _RECENT_SECONDS:
            self.recent.popleft()
        while self.recent_arrivals and self.recent_arrivals[0] < now - began - _RECENT_SECONDS:
            self.recent_arrivals.popleft()

    def _minute(self, seconds: float) -> Tally:
        minute = max(int(seconds // _SECONDS_PER_MINUTE), 0)
        while len(self.minutes) <= minute:
            self.minutes.append(Tally())
        return self.minutes[minute]


class Traffic:
    """A running plan: offers its requests to the engines of its pods over time."""

    def __init__(self, plan: TrafficPlan, *, began: float) -> None:
        self.plan = plan
        self.began = began
        self.service = Service(
            routing=plan.routing, when_no_engine=plan.when_no_engine, random_state=plan.seed
        )
        self.truth = Truth(ttft_seconds=plan.ttft_seconds, tpot_seconds=plan.tpot_seconds)
        trace = plan.arrivals()
        self._arrivals = trace.arrival_seconds.tolist()
        self._prompts = trace.prompt_tokens.tolist()
        self._outputs = trace.output_tokens.tolist()
        self._next = 0
        self._unrouted = self._overflowed = 0
        self._clock = began
        self.replica_seconds = 0.0

    @property
    def finished(self) -> bool:
        """Whether all requests have arrived."""
        return self._next == len(self._arrivals)

    def rebase(self, began: float) -> None:
        """Count from this time instead; only before the first arrival."""
        self.began = self._clock = began

    def serves(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod belongs to the workload of this traffic."""
        return namespace == self.plan.namespace and self.plan.selector.items() <= labels.items()

    def advance(self, now: float) -> None:
        """Simulate all events until now."""
        began, service, truth = self.began, self.service, self.truth
        while self._next < len(self._arrivals) and began + self._arrivals[self._next] <= now:
            i = self._next
            self._next += 1
            truth.offer(self._arrivals[i])
            if self._overflows(began + self._arrivals[i]):
                truth.close(self._refused(i), began)
                continue
            self._unrouted += not service.engines and self.plan.when_no_engine is WhenNoEngine.FAIL
            service.offer(
                arrival=began + self._arrivals[i],
                prompt_tokens=self._prompts[i],
                output_tokens=self._outputs[i],
                cached_ratio=self.plan.cached_ratio,
            )
        for record in service.advance(now):
            truth.close(record, began)
        truth.forget(now, began)
        replicas = len(service.engines) + len(service.draining)
        self.replica_seconds += replicas * max(now - self._clock, 0.0)
        self._clock = now

    def counted(self) -> RouteReading | None:
        """The gateway's counts; None if it is not read."""
        if self.plan.route is None:
            return None
        return RouteReading(
            namespace=self.plan.namespace,
            route=self.plan.route,
            offered=self.truth.total.offered,
            unrouted=self._unrouted,
            overflowed=self._overflowed,
            waiting=self.service.waiting_at_gateway,
        )

    def _overflows(self, at: float) -> bool:
        """Whether the gateway refuses a request that arrives at this time."""
        bound = self.plan.max_in_flight
        if bound is None:
            return False
        for record in self.service.advance(at):
            self.truth.close(record, self.began)
        overflows = self.service.in_flight >= bound
        self._overflowed += overflows
        return overflows

    def _refused(self, i: int) -> RequestRecord:
        at = self.began + self._arrivals[i]
        return RequestRecord(
            outcome=Outcome.REJECTED,
            arrival_seconds=at,
            first_token_seconds=None,
            finish_seconds=at,
            prompt_tokens=self._prompts[i],
            output_tokens=0,
        )

    def stats(self, now: float) -> dict[str, Any]:
        """True results so far, for JSON: totals, by arrival minute, and of the last 30 seconds."""
        truth, total = self.truth, self.truth.total
        span = min(max(now - self.began, 1e-9), _RECENT_SECONDS)
        return {
            "name": self.plan.name,
            "namespace": self.plan.namespace,
            "seconds": now - self.began,
            "finished": self.finished,
            "offered": total.offered,
            "over": total.over,
            "in_slo": total.good,
            "share_in_slo": total.good / total.over if total.over else None,
            "outcomes": {outcome.value: count for outcome, count in truth.outcomes.items()},
            "in_flight": self.service.in_flight,
            "waiting_at_gateway": self.service.waiting_at_gateway,
            "replica_seconds": self.replica_seconds,
            "recent": {
                "seconds": span,
                "arrival_rate_per_second": len(truth.recent_arrivals) / span,
                "ttft_seconds": _percentiles(truth.recent, lambda record: record.ttft_seconds),
                "tpot_seconds": _percentiles(truth.recent, lambda record: record.tpot_seconds),
            },
            "minutes": [
                {"minute": i, "offered": t.offered, "over": t.over, "in_slo": t.good}
                for i, t in enumerate(truth.minutes)
            ],
            "engines": [
                {
                    "pod": name,
                    "running": engine.running,
                    "waiting": engine.waiting,
                    "kv_usage_ratio": engine.kv_usage_ratio,
                    "draining": name in self.service.draining,
                }
                for name, engine in (
                    *self.service.engines.items(), *self.service.draining.items(),
                )
            ],
        }  # fmt: skip


def _percentiles(records: Sequence[RequestRecord] | deque[RequestRecord], value: Any) -> Any:
    """p50, p95 and p99 of the known values, None if there are none."""
    values = [number for number in map(value, records) if number is not None]
    if not values:
        return None
    numbers = np.percentile(values, _PERCENTILES)
    return {f"p{p}": float(n) for p, n in zip(_PERCENTILES, numbers, strict=True)}
