"""A page that tells the same again and again: what it tells at last is not of one window."""

from dataclasses import replace

import pytest
from tests.unit.policy_world import TARGETS, World, run, steady

from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.estimation.windows.counters import EngineMemory, EngineStep, advance
from servingslo.policy.planner import plan
from servingslo.reasons import Reason

POD = PodSample(name="chat-0", ready=True)
SCRAPE_SECONDS = 15.0


def _sample(requests: float, **changed: float) -> EngineSample:
    """An engine that has served so many requests of a hundred tokens, with three running."""
    histogram = HistogramSample(
        upper_bounds=(1.0,), cumulative_counts=(requests,), sum=0.1 * requests, count=requests
    )
    sample = EngineSample(
        engine="0",
        gauges_age_seconds=1.0,
        counters_age_seconds=1.0,
        histograms_age_seconds=1.0,
        running=3.0,
        waiting=0.0,
        generation_tokens_total=100.0 * requests,
        prompt_tokens_total=50.0 * requests,
        finished_total={"stop": requests},
        ttft_seconds=histogram,
    )
    return replace(sample, **changed)


def _steps(samples: list[EngineSample]) -> list[EngineStep]:
    memory: EngineMemory | None = None
    steps = []
    for number, sample in enumerate(samples):
        steps.append(advance(memory, POD, sample, 1000.0 + SCRAPE_SECONDS * number, None))
        memory = steps[-1].memory
    return steps


@pytest.mark.parametrize("kept", [1, 4, 12])
def test_what_a_kept_page_tells_at_last_is_of_all_the_time_that_it_was_kept(kept: int) -> None:
    """One request a second throughout: not the crowd that one window would make of it."""
    served = [0.0, 15.0, *kept * [15.0], 15.0 * (kept + 2)]
    last = _steps([_sample(n) for n in served])[-1]
    assert last.counters is not None
    assert last.counters.finished / last.counters.seconds == pytest.approx(1.0)
    assert not last.lasting.paired, "how long steps took is not learnt from it"


def test_windows_after_a_kept_page_are_as_before() -> None:
    """What stood still is forgotten as soon as it moves."""
    after = _steps([_sample(n) for n in (0.0, 15.0, 15.0, 45.0, 60.0, 75.0)])[-1]
    assert after.counters.seconds == pytest.approx(SCRAPE_SECONDS)
    assert after.lasting.paired
    assert after.memory.same_since_seconds is None


def test_an_idle_engine_does_not_stand_still() -> None:
    """Nothing moves where nothing runs: the first requests after it are of their own window."""
    last = _steps([_sample(n, running=0.0) for n in (0.0, 15.0, 15.0, 15.0, 30.0)])[-1]
    assert last.counters.seconds == pytest.approx(SCRAPE_SECONDS)


def test_an_engine_that_hangs_has_windows_without_work() -> None:
    """Who tells pods that lie looks at them: they are no gap."""
    stuck = _steps([_sample(n) for n in (0.0, 15.0, 15.0, 15.0)])[-1]
    assert stuck.counters is not None
    assert stuck.counters.generated_tokens == 0.0
    assert stuck.counters.seconds == pytest.approx(SCRAPE_SECONDS)


def test_the_first_windows_that_stand_still_are_told() -> None:
    """Nothing is concluded of demand from them; after two more the pod is one that hangs."""
    steps = _steps([_sample(n) for n in (0.0, 15.0, 15.0, 15.0, 15.0, 15.0)])
    assert [s.counters is not None and s.counters.still for s in steps] == [
        False, False, True, True, False, False,
    ]  # fmt: skip


def test_a_fleet_whose_pages_are_told_once_more_keeps_its_demand_and_its_replicas() -> None:
    """Prometheus whose clock is set back answers from the scrape before, as if it were of now."""
    world = World(rate=steady(4.0), replicas=3)
    story = run(world, TARGETS).until(600.0)
    before = story.decisions[-1]
    seen = replace(world.observe(615.0), pods=story.observations[-1].pods)
    again, _ = plan(seen, TARGETS, story.limits, story.state, 615.0)
    assert again.metrics is Reason.METRICS_PARTIAL
    assert again.replicas_after == again.replicas_before
    assert again.demand.arrival_rate_per_second == before.demand.arrival_rate_per_second
