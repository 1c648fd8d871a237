"""Counters begin again where they fall; what Kubernetes tells of restarts says only that they may.

It counts the containers of a pod together, and tells of a restart before a scrape shows it, or
after.
"""

from dataclasses import replace

import pytest

from servingslo.estimation.engine_steps import law_of_pods
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.law.configuration import fleet_configuration
from servingslo.estimation.sample import EngineLaunch, EngineSample, HistogramSample, PodSample
from servingslo.estimation.windows.balance import arrivals_of
from servingslo.estimation.windows.counters import EngineMemory, EngineStep, advance
from servingslo.models.engine.service_time import ServiceLaw

SCRAPE_SECONDS = 15.0
# A long life before, so that the whole count would be an arrival rate of hundreds.
BEFORE = 10_000.0
LAW = ServiceLaw(
    step_fixed_seconds=0.01, step_per_sequence_seconds=1e-4, prefill_per_token_seconds=1e-5
)


def _sample(served: float) -> EngineSample:
    first_tokens = HistogramSample(
        upper_bounds=(1.0,), cumulative_counts=(served,), sum=0.2 * served, count=served
    )
    return EngineSample(
        engine="0",
        counters_age_seconds=0.0,
        running=3.0,
        waiting=0.0,
        generation_tokens_total=300.0 * served,
        prompt_tokens_total=400.0 * served,
        finished_total={"stop": served},
        ttft_seconds=first_tokens,
    )


def _steps(*told: tuple[float, int]) -> list[EngineStep]:
    """Each look's step: requests served by then, and restarts told of the pod."""
    memory: EngineMemory | None = None
    steps = []
    for number, (served, restarts) in enumerate(told):
        pod = PodSample(name="a", ready=True, restarts=restarts)
        at = 1000.0 + SCRAPE_SECONDS * number
        steps.append(advance(memory, pod, _sample(served), at, None))
        memory = steps[-1].memory
    return steps


def _arrivals(step: EngineStep) -> float | None:
    return None if step.counters is None else arrivals_of(step.counters)


def test_a_container_beside_the_engine_that_restarts_is_no_arrival() -> None:
    """A proxy's restart counts for its pod; the engine has served what it has served."""
    steps = _steps((BEFORE, 0), (BEFORE + 20.0, 1), (BEFORE + 45.0, 1))
    assert [_arrivals(step) for step in steps[1:]] == [20.0, 25.0]


def test_a_restart_is_believed_at_the_scrape_that_shows_it() -> None:
    """Told at once, while the last page of the container before is what was scraped."""
    steps = _steps((BEFORE, 0), (BEFORE + 20.0, 1), (150.0, 1), (170.0, 1))
    assert [step.doubt for step in steps] == ["", "", "", ""]
    assert [_arrivals(step) for step in steps[1:]] == [20.0, 150.0, 20.0]
    assert [step.counters and step.counters.restarted for step in steps[1:]] == [False, True, False]


def test_a_restart_that_is_told_after_its_scrape_is_counted_once() -> None:
    """The counters fell first; what came then goes on from there."""
    steps = _steps((BEFORE, 0), (30.0, 0), (50.0, 1))
    assert [_arrivals(step) for step in steps[1:]] == [30.0, 20.0]


def test_a_restart_is_over_with_the_first_scrape_after_it_was_told() -> None:
    """A later fall by many requests needs another one."""
    steps = _steps((BEFORE, 0), (BEFORE + 20.0, 1), (BEFORE + 40.0, 1), (5000.0, 1))
    assert "no container started" in steps[-1].doubt
    assert steps[-1].counters is None


def test_counters_that_fell_and_came_back_never_fell() -> None:
    """A page loses its numbers for two scrapes; one request a second came all the while."""
    steps = _steps((BEFORE, 0), (BEFORE + 15.0, 0), (0.0, 0), (0.0, 0), (BEFORE + 60.0, 0))
    assert [step.doubt for step in steps] == 5 * [""]
    assert _arrivals(steps[-1]) == pytest.approx(45.0)
    assert steps[-1].counters.seconds == pytest.approx(3 * SCRAPE_SECONDS)
    assert not steps[-1].lasting.paired, "how long steps took is not learnt from it"


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_engine_that_began_again_counts_from_zero(restarts: int) -> None:
    """Whether its container began too or a supervisor started it."""
    steps = _steps((BEFORE, 0), (0.0, restarts), (5.0, restarts), (20.0, restarts))
    assert [_arrivals(step) for step in steps[1:]] == [0.0, 5.0, 15.0]


def test_what_an_engine_counts_beyond_its_last_life_is_its_own() -> None:
    """A container started, and the new engine soon served more than the one before it."""
    steps = _steps((30.0, 0), (0.0, 1), (40.0, 1))
    assert [_arrivals(step) for step in steps[1:]] == [0.0, 40.0]


def test_a_scrape_that_was_doubted_is_not_judged_again_when_a_restart_is_told() -> None:
    """A page is cut in half, then its container begins again; the first of the new one counts."""
    whole, half, first = _sample(BEFORE), _sample(BEFORE / 2.0), _sample(12.0)
    before = PodSample(name="a", ready=True)
    after = PodSample(name="a", ready=True, restarts=1)
    memory = advance(None, before, whole, 1000.0, None).memory
    doubted = advance(memory, before, half, 1015.0, None)
    assert "no container started" in doubted.doubt
    # Nothing new was scraped since.
    old = replace(half, counters_age_seconds=5.0)
    again = advance(doubted.memory, after, old, 1020.0, None)
    assert (again.counters, again.doubt) == (None, "")
    begun = advance(again.memory, after, first, 1030.0, None)
    assert (begun.counters.restarted, _arrivals(begun)) == (True, 12.0)


@pytest.mark.parametrize(("servers", "pods"), [(None, {"a"}), (4, set())])
def test_steps_that_several_processes_count_are_not_held_against_the_law(
    servers: int | None, pods: set[str]
) -> None:
    """Four of them make four steps of one: more work than time, and nothing is wrong with it."""
    launch = EngineLaunch(flags=(), api_server_count=servers)
    engine = EngineSample(engine="0", kv_capacity_tokens=1e5, max_num_seqs=64)
    pod = PodSample(name="a", ready=True, launch=launch, engines=(engine,))
    found = fleet_configuration((pod,))
    assert found is not None
    assert set(law_of_pods((found[0], LAW), (pod,))) == pods


def _rates(*told: tuple[float, int]) -> list[float | None]:
    """The arrival rate at each look."""
    state, rates = EstimatorState(), []
    for number, (served, restarts) in enumerate(told):
        pod = PodSample(
            name="a", ready=True, age_seconds=900.0, ready_for_seconds=800.0, restarts=restarts,
            engines=(_sample(served),),
        )  # fmt: skip
        at = 1000.0 + SCRAPE_SECONDS * number
        state, estimate = update(state, FleetSample(time_seconds=at, pods=(pod,)))
        rates.append(estimate.arrival_rate_per_second)
    return rates


def test_what_came_before_a_restart_in_its_window_is_no_fall_of_demand() -> None:
    """An engine that has just begun again has counted nothing; that nothing came is not known."""
    rates = _rates((BEFORE, 0), (BEFORE + 30.0, 0), (0.0, 1), (30.0, 1))
    assert rates[1:] == [2.0, 2.0, 2.0]


def test_what_an_engine_counted_since_its_restart_is_demand() -> None:
    """More than before is believed at once."""
    rates = _rates((BEFORE, 0), (BEFORE + 30.0, 0), (60.0, 1))
    assert rates[1:] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("running", "ready_for_seconds", "lost"),
    [(13.0, 600.0, True), (13.0, 20.0, False), (0.0, 600.0, False)],
)
def test_an_engine_that_runs_requests_and_counts_nothing_is_part_missing_at_first_sight(
    running, ready_for_seconds, lost
):
    """A restart of ours forgets what a pod had: gauges alone are not all that it should tell."""
    whole = PodSample(name="a", ready=True, ready_for_seconds=600.0, engines=(_sample(50.0),))
    gauges = EngineSample(engine="0", gauges_age_seconds=0.0, running=running, waiting=0.0)
    half = PodSample(name="b", ready=True, ready_for_seconds=ready_for_seconds, engines=(gauges,))
    _, estimate = update(EstimatorState(), FleetSample(time_seconds=0.0, pods=(whole, half)))
    assert estimate.lost_families == ((("b", "counters"),) if lost else ())
