"""A rule next to what was observed: what it orders at each observation, and what comes of that.

The rule sees the metrics as they were, with the replicas that were there; what its own count would
have changed in them is not simulated. A replica that it orders serves one cold start later.
Misses of what was are counted in engines' histograms; of other counts, the law has to say them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from servingslo.controller.recordings.recording import Replayed
from servingslo.errors import InvalidInputError
from servingslo.estimation.requests.histograms import pooled_delta
from servingslo.estimation.requests.misses import Misses, Within, misses
from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.models.fleet.objective_metrics import ROW_OF, metric_seconds
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.decision_parts import ObjectiveReport
from servingslo.policy.inputs import Observation
from servingslo.policy.replicas.sizing import Sized, SizingCase
from servingslo.units import PERCENT_PER_UNIT
from servingslo_lab.cli.shadowing.rule import Rule
from servingslo_lab.sim.baselines.horizontal import Horizontal
from servingslo_lab.sim.baselines.view import Scrape, View

SEEN, SERVINGSLO = "as it was", "ServingSLO"
# A longer silence is a recording that stopped, not a tick: the longest tick is a minute.
LONGEST_GAP_SECONDS = 300.0
# A rate is judged on two digits, so that a steady load is judged once; the law is no finer.
_DIGITS = 2
# Bisections of the share that keeps a threshold: to a hundredth of a percent.
_STEPS = 14
_HIGHEST_PERCENTILE = 99.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One observation, which stands for so many seconds. replicas: as ordered, by row.

    judged_requests: that arrived, if a law was trusted; else 0. missed: of them by the law, by row.
    measured: requests that ended, and how many missed; None if not known.
    """

    time_seconds: float
    seconds: float
    arrival_rate_per_second: float | None
    replicas: dict[str, int]
    judged_requests: float
    missed: dict[str, float]
    measured: Misses | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """All rows, tick by tick.

    unread: metrics of the rule that are not known here; with them it would have ordered no fewer.
    unmeasured: objectives whose histogram no engine has. devices: GPUs of one pod, as they report.
    """

    resource: str
    rule: str
    target_share_ratio: float
    unread: tuple[str, ...]
    unmeasured: tuple[str, ...]
    devices: int | None
    ticks: tuple[Tick, ...]


def played(
    replayed: Iterable[Replayed],
    rule: Rule,
    resource: str | None = None,
    *,
    step_seconds: float | None = None,
) -> Played:
    """The rule, ServingSLO and what was, on one resource.

    resource: 'namespace/name'; None if there is one. step_seconds: what one observation stands for
    at most; None: it stands until the next one, up to five minutes. Raises: InvalidInputError.
    """
    play, ticks = _Play(rule, step_seconds), []
    for one, seconds in _timed(_of_one(replayed, resource), step_seconds):
        if one.observation.desired_replicas is not None:
            ticks.append(play.tick(one, one.observation.desired_replicas, seconds))
    if not ticks:
        raise InvalidInputError("RECORDING", "no replica count", "observations with one")
    return Played(
        resource=play.resource,
        rule=rule.name,
        target_share_ratio=play.target_share_ratio,
        unread=rule.unread,
        unmeasured=tuple(sorted(play.objectives - play.measured)),
        devices=play.devices or None,
        ticks=tuple(ticks),
    )


def _of_one(replayed: Iterable[Replayed], resource: str | None) -> Iterator[Replayed]:
    names: dict[str, None] = {}
    for one in replayed:
        name = f"{one.observation.namespace}/{one.observation.name}"
        names[name] = None
        if resource is None and len(names) > 1:
            raise InvalidInputError("--resource", None, ", ".join(names))
        if resource in {None, name}:
            if one.fleet.only is None:
                allowed = "a resource with one target, without pools"
                raise InvalidInputError("RECORDING", name, allowed)
            yield one
    if not names or resource not in {None, *names}:
        there = ", ".join(names) or "none: the recording is empty"
        raise InvalidInputError("--resource", resource, there)


def _timed(
    chosen: Iterator[Replayed], step_seconds: float | None
) -> Iterator[tuple[Replayed, float]]:
    """Seconds that each observation stands for; the last one as long as the one before."""
    last = next(chosen, None)
    length = step_seconds or 0.0
    for one in chosen:
        assert last is not None  # noqa: S101 - there was one before
        length = one.observation.time_seconds - last.observation.time_seconds
        if step_seconds is not None:
            length = min(length, step_seconds)
        elif length > LONGEST_GAP_SECONDS:
            length = 0.0
        yield last, length
        last = one
    if last is not None:
        yield last, length


@dataclass(slots=True)
class _Row:
    """What was ordered, as (time, count), since one cold start ago."""

    orders: deque[tuple[float, int]] = field(default_factory=deque)

    def order(self, now_seconds: float, count: int) -> None:
        if not self.orders or self.orders[-1][1] != count:
            self.orders.append((now_seconds, count))

    def serving(self, now_seconds: float, cold_start_seconds: float) -> int:
        """Replicas that serve: the fewest ordered since one cold start ago."""
        since = now_seconds - cold_start_seconds
        while len(self.orders) > 1 and self.orders[1][0] <= since:
            self.orders.popleft()
        return min(count for _, count in self.orders)


class _Play:
    """Rule, planner and what was, from one observation to the next."""

    def __init__(self, rule: Rule, step_seconds: float | None) -> None:
        self._rule = rule
        longest = LONGEST_GAP_SECONDS if step_seconds is None else 1.5 * step_seconds
        self._rows = {name: _Row() for name in (SEEN, rule.name, SERVINGSLO)}
        self._view, self._judge, self._count = View(), _Judge(), _Counting(longest)
        self._horizontal = Horizontal(rule.behavior, minimum=rule.minimum, maximum=rule.maximum)
        self.resource = ""
        self.target_share_ratio = 1.0
        self.objectives: set[str] = set()
        self.measured: set[str] = set()
        self.devices = 0

    def tick(self, one: Replayed, desired: int, seconds: float) -> Tick:
        """What each orders now, and what comes of it until the next observation."""
        observation, decision = one.observation, one.decision
        now = observation.time_seconds
        self.resource = f"{observation.namespace}/{observation.name}"
        if decision.promise is not None:
            self.target_share_ratio = decision.promise.target_ratio
        elif decision.objectives:
            least = min(each.percentile for each in decision.objectives)
            self.target_share_ratio = least / PERCENT_PER_UNIT
        self.devices = max([self.devices, *(len(pod.gpus) for pod in observation.pods)])
        recommended = decision.recommended_replicas
        ordered = {
            SEEN: desired,
            self._rule.name: self._ordered(self._view.add(observation), desired, now),
            SERVINGSLO: desired if recommended is None else recommended,
        }
        rate = decision.demand.arrival_rate_per_second or 0.0
        cold = 0.0 if decision.cold_start is None else decision.cold_start.seconds
        for name, count in ordered.items():
            self._rows[name].order(now, count)
        sized = one.sized if one.sized is not None and one.sized.case.objectives else None
        arrived = 0.0 if sized is None else rate * seconds
        missed = {}
        if sized is not None:
            for name, row in self._rows.items():
                ratio = self._judge.missed_ratio(sized, row.serving(now, cold), rate)
                missed[name] = arrived * ratio
        measured, found = self._count.misses(observation, decision.objectives)
        self.objectives |= {each.metric for each in decision.objectives}
        self.measured |= found
        return Tick(
            time_seconds=now,
            seconds=seconds,
            arrival_rate_per_second=decision.demand.arrival_rate_per_second,
            replicas=ordered,
            judged_requests=arrived,
            missed=missed,
            measured=measured,
        )

    def _ordered(self, scrape: Scrape, desired: int, now: float) -> int:
        """What the rule orders."""
        orders = self._rows[self._rule.name].orders
        current = orders[-1][1] if orders else desired
        wanted = [signal.replicas(scrape) for signal in self._rule.signals]
        counts = [self._rule.replicas(need, current) for need in wanted if need is not None]
        # While a metric is missing an HPA does not scale down.
        if len(counts) < len(wanted):
            counts.append(current)
        return self._horizontal.replicas(current, counts, now)


class _Counting:
    """Requests that ended since the observation before, and those that missed an objective."""

    def __init__(self, longest_gap_seconds: float) -> None:
        self._longest_gap_seconds = longest_gap_seconds
        self._at: float | None = None
        self._engines: dict[tuple[str, str], EngineSample] = {}

    def misses(
        self, observation: Observation, objectives: Iterable[ObjectiveReport]
    ) -> tuple[Misses | None, set[str]]:
        """None after a silence, whose requests belong to no tick; and the objectives observed."""
        engines = {
            (pod.name, engine.engine): engine for pod in observation.pods for engine in pod.engines
        }
        before, silent = self._engines, self._at is None
        if self._at is not None:
            silent = observation.time_seconds - self._at > self._longest_gap_seconds
        self._at = observation.time_seconds
        # An engine that is not scraped for a while goes on counting.
        self._engines = engines if silent else {**before, **engines}
        within, found = [], set()
        for one in objectives:
            histogram = ROW_OF[LatencyMetric(one.metric)].histogram
            pairs = [
                (_histogram(before.get(key), histogram), after)
                for key, engine in engines.items()
                if (after := _histogram(engine, histogram)) is not None
            ]
            if pairs:
                found.add(one.metric)
            delta = None if silent else pooled_delta(pairs)
            share = None if delta is None else delta.share_within(one.threshold_seconds)
            if delta is not None and share is not None:
                low, high = (delta.count * ratio for ratio in share)
                within.append(Within(requests=delta.count, least=low, most=high))
        if silent or not found:
            return None, found
        refused = sum(
            max(engine.rejected_total - was, 0.0)
            for key, engine in engines.items()
            if engine.rejected_total is not None
            and key in before
            and (was := before[key].rejected_total) is not None
        )
        return misses(within, refused), found


def _histogram(engine: EngineSample | None, name: str) -> HistogramSample | None:
    found: HistogramSample | None = None if engine is None else getattr(engine, name)
    return found


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
