"""One home of staleness: what each pod's metrics are worth to the planner and to the estimators."""

from dataclasses import replace

import pytest

from servingslo.api.v1alpha1.spec import Fallback
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows.freshness import assess, metrics_of, seen_behind_seconds
from servingslo.policy.inputs import FallbackTargets, Observation
from servingslo.policy.replicas.signals import read_signals
from servingslo.reasons import Reason
from servingslo.units import parse_duration_seconds

STALE_SECONDS = 60.0
STALE, MISSING = "metrics-stale", "metrics-missing"
ENGINE = EngineSample(
    engine="0", running=2.0, waiting=1.0, gauges_age_seconds=5.0, counters_age_seconds=5.0,
    generation_tokens_total=1000.0,
)  # fmt: skip
SILENT = EngineSample(engine="0")
POD = PodSample(name="a", ready=True, ready_for_seconds=600.0, engines=(ENGINE,))
BESIDE = replace(POD, name="b")


def aged(seconds: float, **changes: object) -> PodSample:
    """The pod with metrics this old."""
    engine = replace(ENGINE, gauges_age_seconds=seconds, counters_age_seconds=seconds)
    return replace(POD, engines=(replace(engine, **changes),))


def with_engines(*engines: EngineSample) -> PodSample:
    """The pod with these engines."""
    return replace(POD, engines=engines)


def other(engine: EngineSample = ENGINE) -> EngineSample:
    """A second engine."""
    return replace(engine, engine="1")


def new(seconds: float, engine: EngineSample = SILENT) -> PodSample:
    """A pod that became ready a moment ago."""
    return replace(POD, ready_for_seconds=seconds, engines=(engine,))


NO_GAUGES = replace(ENGINE, running=None, waiting=None)
NO_COUNTERS = replace(ENGINE, generation_tokens_total=None, counters_age_seconds=70.0)
OLD_COUNTERS = replace(ENGINE, counters_age_seconds=70.0)
HALF_A_NUMBER = replace(ENGINE, waiting=None, nan_metrics=("vllm:num_requests_waiting",))
NO_QUEUE = replace(ENGINE, waiting=None)
NOT_A_NUMBER = replace(SILENT, nan_metrics=("running",))
IMPOSSIBLE = replace(ENGINE, impossible_metrics=("running -1",))
UNDATED = aged(5.0, gauges_age_seconds=None, counters_age_seconds=None)
CASES = {
    "fresh": (POD, ("MetricsFresh", 5.0, 0, 1, None, 0)),
    "a scrape old": (aged(15.0), ("MetricsFresh", 15.0, 0, 1, None, 0)),
    "three scrapes old": (aged(45.0), ("MetricsFresh", 45.0, 0, 1, None, 0)),
    "ageing": (aged(46.0), ("MetricsPartial", 46.0, 1, 1, None, 0)),
    "as old as may be": (aged(60.0), ("MetricsPartial", 60.0, 1, 1, None, 0)),
    "stale": (aged(61.0), ("MetricsPartial", 5.0, 1, 0, STALE, 0)),
    "silent": (with_engines(SILENT), ("MetricsPartial", 5.0, 1, 0, MISSING, 0)),
    "no engines": (with_engines(), ("MetricsPartial", 5.0, 1, 0, MISSING, 0)),
    "no gauges": (with_engines(NO_GAUGES), ("MetricsPartial", 5.0, 1, 1, None, 0)),
    "no counters": (with_engines(NO_COUNTERS), ("MetricsFresh", 5.0, 0, 1, None, 0)),
    "ages unknown": (UNDATED, ("MetricsPartial", 5.0, 1, 0, MISSING, 0)),
    "old counters": (with_engines(OLD_COUNTERS), ("MetricsPartial", 5.0, 1, 0, STALE, 0)),
    "not a number": (with_engines(NOT_A_NUMBER), ("MetricsPartial", 5.0, 1, 0, MISSING, 0)),
    "queue not a number": (with_engines(HALF_A_NUMBER), ("MetricsPartial", 5.0, 1, 1, None, 0)),
    "no queue": (with_engines(NO_QUEUE), ("MetricsFresh", 5.0, 0, 1, None, 0)),
    "impossible": (with_engines(IMPOSSIBLE), ("MetricsPartial", 5.0, 1, 0, MISSING, 0)),
    "new": (new(10.0), ("MetricsFresh", 5.0, 0, 0, None, 1)),
    "new to the second": (new(45.0), ("MetricsFresh", 5.0, 0, 0, None, 1)),
    "new no more": (new(46.0), ("MetricsPartial", 5.0, 1, 0, MISSING, 0)),
    "new and not a number": (new(10.0, NOT_A_NUMBER), ("MetricsPartial", 5.0, 1, 0, None, 1)),
    "new and scraped": (new(10.0, ENGINE), ("MetricsFresh", 5.0, 0, 1, None, 0)),
    "two engines": (with_engines(ENGINE, other()), ("MetricsFresh", 5.0, 0, 2, None, 0)),
    "one of two silent": (
        with_engines(ENGINE, other(SILENT)), ("MetricsPartial", 5.0, 1, 1, None, 0)
    ),
    "one of two stale": (
        with_engines(ENGINE, other(aged(61.0).engines[0])), ("MetricsPartial", 5.0, 1, 1, None, 0)
    ),
    "not ready": (replace(POD, ready=False), ("MetricsFresh", 5.0, 0, 1, None, 0)),
    "deleted": (replace(POD, deleting=True), ("MetricsFresh", 5.0, 0, 1, None, 0)),
}  # fmt: skip


def answers(pod: PodSample, scrape_seconds: float | None = None) -> tuple[object, ...]:
    """What is said of a pod beside one that is as it should be.

    The planner's verdict with the age and the number of pods not seen; of the estimators the
    engines used, why the pod is not seen, and how many are only starting.
    """
    observation = Observation(time_seconds=0.0, namespace="n", name="w", pods=(pod, BESIDE))
    signals = read_signals(observation, STALE_SECONDS, scrape_seconds, 0.0)
    found = assess((pod, BESIDE), STALE_SECONDS, scrape_seconds, behind_seconds=0.0)
    return (
        signals.reason.value,
        signals.age_seconds,
        len(signals.unseen_pods),
        len(found.engines) - 1,
        dict(found.unseen).get("a"),
        len(found.starting),
    )


@pytest.mark.parametrize("case", CASES)
def test_planner_and_estimators_judge_a_pod_by_one_measure(case: str) -> None:
    """Every way in which metrics can be there, lacking, old or new."""
    pod, expected = CASES[case]
    assert answers(pod) == expected


@pytest.mark.parametrize(
    ("pod", "scrape_seconds", "expected"),
    [
        pytest.param(new(80.0), 30.0, ("MetricsFresh", 5.0, 0, 0, None, 1), id="slow-and-new"),
        pytest.param(new(91.0), 30.0, ("MetricsPartial", 5.0, 1, 0, MISSING, 0), id="slow-no-more"),
        pytest.param(aged(55.0), 30.0, ("MetricsFresh", 55.0, 0, 1, None, 0), id="slow-and-fresh"),
        pytest.param(aged(16.0), 5.0, ("MetricsPartial", 16.0, 1, 1, None, 0), id="fast-ageing"),
        pytest.param(aged(15.0), 5.0, ("MetricsFresh", 15.0, 0, 1, None, 0), id="fast-and-fresh"),
    ],
)
def test_what_is_fresh_follows_the_scrapes(
    pod: PodSample, scrape_seconds: float, expected: tuple[object, ...]
) -> None:
    """Three scrapes make a sample old; a new pod has as long until its first."""
    assert answers(pod, scrape_seconds) == expected


def test_one_default_holds_for_resources_and_for_commands() -> None:
    """What `fit` and a sweep take for stale is what a resource without a word on it does."""
    stated = parse_duration_seconds(Fallback().stale_after)
    sample = FleetSample(time_seconds=0.0, pods=())
    assert stated == FallbackTargets().stale_after_seconds == sample.stale_after_seconds


def _of_store(ages: dict[str, float]) -> tuple[PodSample, ...]:
    """Ready pods with gauges and counters of these ages."""
    engines = {
        name: EngineSample(engine="0", running=1.0, waiting=0.0, gauges_age_seconds=age)
        for name, age in ages.items()
    }
    return tuple(
        PodSample(name=name, ready=True, ready_for_seconds=900.0, engines=(engine,))
        for name, engine in engines.items()
    )


def test_a_slow_part_of_a_store_is_fresh_while_its_series_move() -> None:
    """Until staleAfter, however fast the other parts are; what stops is not fresh for long."""
    ages = {"fast": 5.0, "slow": 65.0}
    pods = _of_store(ages)
    moved = {(name, "0") for name in ages}
    behind = seen_behind_seconds(None, 15.0, assess(pods, 120.0), moved)
    states = [metrics_of(pod, 120.0, 15.0, behind).state for pod in pods]
    assert states == [Reason.METRICS_FRESH, Reason.METRICS_FRESH]
    for _ in range(300):
        stopped = assess(_of_store({"fast": 5.0, "slow": 100.0}), 120.0)
        behind = seen_behind_seconds(behind, 15.0, stopped, {("fast", "0")})
    assert metrics_of(pods[1], 120.0, 15.0, behind).state is Reason.METRICS_PARTIAL


def test_until_a_scrape_has_followed_another_any_usable_age_is_fresh() -> None:
    """A store that is late, with slow scrapes, is not stale from the start."""
    fresh, stale = _of_store({"a": 119.0, "b": 121.0})
    assert metrics_of(fresh, 120.0).state is Reason.METRICS_FRESH
    assert metrics_of(stale, 120.0).state is Reason.METRICS_STALE
