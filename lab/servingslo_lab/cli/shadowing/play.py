"""A rule beside a recording: what it orders at each observation, and what the law says of that.

The rule sees the metrics as they were, with the replicas that were there; what its own count would
have changed in them is not simulated. A replica that it orders serves one cold start later.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from servingslo.controller.recordings.recording import Replayed
from servingslo.errors import InvalidInputError
from servingslo.models.fleet.objective_metrics import metric_seconds
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import Objective
from servingslo.policy.replicas.sizing import Sized, SizingCase
from servingslo.units import PERCENT_PER_UNIT, SECONDS_PER_HOUR
from servingslo_lab.cli.shadowing.rule import Rule
from servingslo_lab.sim.baselines.horizontal import Horizontal, external_metric_replicas
from servingslo_lab.sim.baselines.view import View

SEEN, SERVINGSLO = "as it was", "ServingSLO"
# A longer silence is a recording that stopped, not a tick: the longest tick is a minute.
LONGEST_GAP_SECONDS = 300.0
# A rate is judged on two digits, so that a steady load is judged once; the law is no finer.
_DIGITS = 2
# Bisections of the share that keeps a threshold: to a hundredth of a percent.
_STEPS = 14
_HIGHEST_PERCENTILE = 99.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row. missed_requests: by the law, of those judged; None if no request was judged."""

    name: str
    least_replicas: int
    mean_replicas: float
    greatest_replicas: int
    changes: int
    replica_hours: float
    missed_requests: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Ordered replicas at one observation, by row; None where no count was known."""

    time_seconds: float
    arrival_rate_per_second: float | None
    replicas: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """All rows.

    judged_requests: arrived while a law was trusted. unread: metrics of the rule that no recording
    has; with them it would have ordered no fewer.
    """

    resource: str
    rule: str
    seconds: float
    requests: float
    judged_requests: float
    outcomes: tuple[Outcome, ...]
    unread: tuple[str, ...]
    ticks: tuple[Tick, ...]


@dataclass(slots=True)
class Row:
    """What was ordered, as (time, count), and what came of it."""

    orders: list[tuple[float, int]] = field(default_factory=list)
    replica_seconds: float = 0.0
    missed: float = 0.0

    def serving(self, now_seconds: float, cold_start_seconds: float) -> int:
        """Replicas that serve: the fewest ordered since one cold start ago."""
        since = now_seconds - cold_start_seconds
        ends = [at for at, _ in self.orders[1:]] + [now_seconds + 1.0]
        return min(count for (_, count), end in zip(self.orders, ends, strict=True) if end > since)


def played(replayed: Iterable[Replayed], rule: Rule, resource: str | None = None) -> Shadow:
    """The rule, ServingSLO and what was, on one resource of a recording.

    resource: 'namespace/name'; None if the recording has one. Raises: InvalidInputError.
    """
    chosen = _of_one(replayed, resource)
    rows = {name: Row() for name in (SEEN, rule.name, SERVINGSLO)}
    view, judged = View(), _Judge()
    horizontal = Horizontal(rule.behavior, minimum=rule.minimum, maximum=rule.maximum)
    requests = judged_requests = seconds = 0.0
    ticks: list[Tick] = []
    for one, length in zip(chosen, _lengths(chosen), strict=True):
        observation, decision = one.observation, one.decision
        now, desired = observation.time_seconds, observation.desired_replicas
        if desired is None:
            continue
        scrape = view.add(observation)
        current = rows[rule.name].orders[-1][1] if rows[rule.name].orders else desired
        wanted = [signal.replicas(scrape) for signal in rule.signals]
        counts = [
            external_metric_replicas(need, target=1.0, live=current, current=current)
            for need in wanted
            if need is not None
        ]
        # While a metric is missing an HPA does not scale down.
        if len(counts) < len(wanted):
            counts.append(current)
        ordered = {
            SEEN: desired,
            rule.name: horizontal.replicas(current, counts, now),
            SERVINGSLO: desired
            if decision.recommended_replicas is None
            else decision.recommended_replicas,
        }
        rate = decision.demand.arrival_rate_per_second
        cold = 0.0 if decision.cold_start is None else decision.cold_start.seconds
        arrived = (rate or 0.0) * length
        requests, seconds = requests + arrived, seconds + length
        sized = one.sized if one.sized is not None and one.sized.case.objectives else None
        judged_requests += 0.0 if sized is None else arrived
        for name, count in ordered.items():
            row = rows[name]
            row.orders.append((now, count))
            row.replica_seconds += count * length
            if sized is not None:
                served = row.serving(now, cold)
                row.missed += arrived * judged.missed_ratio(sized, served, rate or 0.0)
        ticks.append(Tick(time_seconds=now, arrival_rate_per_second=rate, replicas=ordered))
    if not ticks:
        raise InvalidInputError("RECORDING", "no replica count", "observations with one")
    first = chosen[0].observation
    return Shadow(
        resource=f"{first.namespace}/{first.name}",
        rule=rule.name,
        seconds=seconds,
        requests=requests,
        judged_requests=judged_requests,
        outcomes=tuple(_outcome(name, row, seconds, judged_requests) for name, row in rows.items()),
        unread=rule.unread,
        ticks=tuple(ticks),
    )


def _of_one(replayed: Iterable[Replayed], resource: str | None) -> list[Replayed]:
    by_name: dict[str, list[Replayed]] = {}
    for one in replayed:
        by_name.setdefault(f"{one.observation.namespace}/{one.observation.name}", []).append(one)
    there = ", ".join(by_name)
    if resource is not None and resource not in by_name:
        raise InvalidInputError("--resource", resource, there or "none: no observation")
    if resource is None and len(by_name) != 1:
        raise InvalidInputError("--resource", None, there or "none: the recording is empty")
    chosen = by_name[resource or there]
    if any(one.fleet.only is None for one in chosen):
        raise InvalidInputError("RECORDING", there, "a resource with one target, without pools")
    return chosen


def _lengths(chosen: Sequence[Replayed]) -> Iterator[float]:
    """Seconds that each observation stands for; the last one as long as the one before."""
    times = [one.observation.time_seconds for one in chosen]
    gaps = [after - before for before, after in pairwise(times)]
    lengths = [gap if gap <= LONGEST_GAP_SECONDS else 0.0 for gap in gaps]
    yield from lengths
    yield lengths[-1] if lengths else 0.0


def _outcome(name: str, row: Row, seconds: float, judged_requests: float) -> Outcome:
    counts = [count for _, count in row.orders]
    return Outcome(
        name=name,
        least_replicas=min(counts),
        mean_replicas=row.replica_seconds / seconds if seconds else float(counts[-1]),
        greatest_replicas=max(counts),
        changes=sum(a != b for a, b in pairwise(counts)),
        replica_hours=row.replica_seconds / SECONDS_PER_HOUR,
        missed_requests=row.missed if judged_requests else None,
    )


class _Judge:
    """The share of requests that miss an objective, by the law of the tick."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], float] = {}
        self._case: object = None

    def missed_ratio(self, sized: Sized, count: int, rate_per_second: float) -> float:
        """The largest share that misses one objective, in steady state; 1 without replicas."""
        if rate_per_second <= 0:
            return 0.0
        if count < 1:
            return 1.0
        if self._case is not sized.case:
            self._known, self._case = {}, sized.case
        key = (count, f"{rate_per_second:.{_DIGITS}g}")
        if key not in self._known:
            self._known[key] = _missed_ratio(sized, count, float(key[1]))
        return self._known[key]


def _missed_ratio(sized: Sized, count: int, rate_per_second: float) -> float:
    case = sized.case
    prediction = case.predicted(count, rate_per_second)
    return max(_missing(case, prediction, one) for one in case.objectives)


def _missing(case: SizingCase, prediction: Prediction, objective: Objective) -> float:
    """The share of requests that miss one objective: one less the share at its threshold."""
    metric, factor = objective.metric, case.ratio(objective.metric) * case.slowness.ratio

    def keeps(percentile: float) -> bool:
        found = metric_seconds(prediction, metric, case.percentile(percentile))
        return found * factor <= objective.threshold_seconds

    low, high = 0.0, _HIGHEST_PERCENTILE
    if keeps(high):
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return 1.0 - low / PERCENT_PER_UNIT
