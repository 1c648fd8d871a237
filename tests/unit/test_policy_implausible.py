"""Pages that cannot be true: what they say orders nothing, gives nothing back, teaches nothing."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from policy_world import REPLICAS_ONLY as TARGETS
from policy_world import TICK_SECONDS, Run, World, run, steady

from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.estimation.windows.freshness import seen_scrape_seconds
from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.policy.inputs import Observation, ReplicaTargets
from servingslo.policy.replicas.signals import read_signals
from servingslo.policy.stored_state import learned, restore
from servingslo.reasons import Action, Reason

RATE = 6.0
REPLICAS = 4
TROUBLE = 900.0
Change = Callable[[EngineSample], EngineSample]


@dataclass
class LyingWorld(World):
    """A world whose pages are changed on the way, those of some pods from and to some seconds."""

    change: Change = field(default=lambda engine: engine)
    lying_pods: int = 1
    lie_from: float = TROUBLE
    lie_until: float = TROUBLE

    def observe(self, at: float) -> Observation:
        """What the world shows, with the lies of these pods."""
        seen = super().observe(at)
        if not self.lie_from <= at < self.lie_until:
            return seen
        lying = {pod.name for pod in seen.pods[: self.lying_pods]}
        return replace(
            seen,
            pods=tuple(
                replace(pod, engines=tuple(map(self.change, pod.engines)))
                if pod.name in lying
                else pod
                for pod in seen.pods
            ),
        )


def _times(factor: float) -> Change:
    def scaled(histogram: HistogramSample | None) -> HistogramSample | None:
        if histogram is None:
            return None
        return replace(
            histogram,
            cumulative_counts=tuple(factor * count for count in histogram.cumulative_counts),
            sum=factor * histogram.sum,
            count=factor * histogram.count,
        )

    def change(engine: EngineSample) -> EngineSample:
        return replace(
            engine,
            prompt_tokens_total=factor * (engine.prompt_tokens_total or 0.0),
            generation_tokens_total=factor * (engine.generation_tokens_total or 0.0),
            finished_total={name: factor * v for name, v in engine.finished_total.items()},
            ttft_seconds=scaled(engine.ttft_seconds),
            inter_token_seconds=scaled(engine.inter_token_seconds),
            latency_seconds=scaled(engine.latency_seconds),
            prompt_tokens=scaled(engine.prompt_tokens),
            output_tokens=scaled(engine.output_tokens),
            iteration_tokens=scaled(engine.iteration_tokens),
        )

    return change


def _only_requests_doubled(engine: EngineSample) -> EngineSample:
    return replace(engine, finished_total={n: 40 * v for n, v in engine.finished_total.items()})


@pytest.fixture(scope="module")
def settled() -> Run:
    """A story with a trusted law and a count that has found its place, until the trouble begins."""
    world = LyingWorld(rate=steady(RATE), replicas=REPLICAS)
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=REPLICAS, maximum=40))
    return run(world, targets).until(TROUBLE - 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(_times(1e12), "grew ", id="garbage"),
        pytest.param(_times(100.0), "grew ", id="another-unit"),
        pytest.param(_times(0.5), "fell from", id="half-of-the-series"),
        pytest.param(_only_requests_doubled, "finished grew by", id="one-family"),
    ],
)
@pytest.mark.parametrize("ticks", [1, 4, 12])
@pytest.mark.parametrize("lying_pods", [1, REPLICAS])
def test_what_no_engine_can_have_done_moves_no_replica(
    settled: Run, change: Change, said: str, ticks: int, lying_pods: int
) -> None:
    """From one page to three minutes of them, and after they end: the count stays what it was."""
    story = deepcopy(settled)
    world = story.world
    assert isinstance(world, LyingWorld)
    world.change, world.lying_pods = change, lying_pods
    world.lie_until = TROUBLE + ticks * TICK_SECONDS
    before = world.desired
    law = story.state.estimator.law.fits[0].trusted
    assert law is not None
    story.until(world.lie_until + 150.0)
    first, *_, last = told = story.between(TROUBLE, world.lie_until + 150.0)
    assert first.action is Action.HOLD
    assert first.metrics is Reason.METRICS_IMPLAUSIBLE
    assert said in first.detail
    assert {decision.replicas_after for decision in told} == {before}
    after = story.state.estimator.law.fits[0].trusted
    assert after is not None
    # Pages that stay at half of everything are those of an engine that does half: that is learnt.
    close = 0.15 if said == "grew " or ticks < 12 else 0.4
    assert after.law.step_fixed_seconds == pytest.approx(law.law.step_fixed_seconds, rel=close)
    assert last.metrics is Reason.METRICS_FRESH
    assert last.demand.arrival_rate_per_second == pytest.approx(RATE, rel=0.5)


def test_a_restart_with_its_container_is_no_garbage() -> None:
    """Counters at zero again, and one more restart of the container: what is served counts."""

    def reset(engine: EngineSample) -> EngineSample:
        return _times(0.01)(engine)

    world = LyingWorld(rate=steady(RATE), replicas=REPLICAS, change=reset, lie_until=1e9)
    seen = world.observe

    def restarted(at: float) -> Observation:
        found = seen(at)
        if at < TROUBLE:
            return found
        return replace(found, pods=(replace(found.pods[0], restarts=1), *found.pods[1:]))

    world.observe = restarted  # type: ignore[method-assign]
    story = run(world)
    story.until(TROUBLE + 120.0)
    assert {d.metrics for d in story.between(TROUBLE, TROUBLE + 120.0)} == {Reason.METRICS_FRESH}


def test_a_learnt_law_that_no_engine_can_have_is_dropped() -> None:
    """Steps of 5e-14 s, kept in a status from before: the law is learnt anew, the rest stays."""
    story = run(World(rate=steady(RATE), replicas=REPLICAS))
    story.until(TROUBLE)
    stored = learned(story.state, TROUBLE)
    estimator = stored["estimator"]
    assert isinstance(estimator, dict)
    assert restore(stored, TROUBLE).estimator.law.fits
    law = estimator["laws"][0]
    law["trusted"] = [5e-14, 0.0, 0.0, 0.0, 0.01, 50]
    restored = restore(stored, TROUBLE)
    assert not restored.estimator.law.fits
    assert (
        restored.estimator.lengths
        == restore(learned(story.state, TROUBLE), TROUBLE).estimator.lengths
    )


def _half_a_page(engine: EngineSample) -> EngineSample:
    """Gauges alone."""
    return EngineSample(
        engine=engine.engine,
        gauges_age_seconds=engine.gauges_age_seconds,
        running=engine.running,
        waiting=engine.waiting,
        kv_usage_ratio=engine.kv_usage_ratio,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
    )


def _no_histograms(engine: EngineSample) -> EngineSample:
    bare = dict.fromkeys(("ttft_seconds", "latency_seconds", "inter_token_seconds"))
    return replace(engine, **bare)


@pytest.mark.parametrize("change", [_half_a_page, _no_histograms])
def test_half_a_page_is_told_as_part_of_the_truth(settled: Run, change: Change) -> None:
    """Families that were there and are gone: nothing is given back, and no traffic is not said."""
    story = deepcopy(settled)
    world = story.world
    assert isinstance(world, LyingWorld)
    world.change, world.lying_pods, world.lie_until = change, REPLICAS, TROUBLE + 60.0
    story.until(TROUBLE + 120.0)
    told = story.between(TROUBLE, TROUBLE + 45.0)
    assert {decision.metrics for decision in told} == {Reason.METRICS_PARTIAL}
    assert {decision.action for decision in told} == {Action.HOLD}
    for decision in told:
        assert verdicts(decision)[ConditionType.SLO_MET].reason is Reason.METRICS_PARTIAL
    assert story.decisions[-1].metrics is Reason.METRICS_FRESH


@pytest.mark.parametrize(
    ("scrape_seconds", "fresh", "old"),
    [(None, 44.0, 46.0), (5.0, 14.0, 16.0), (15.0, 44.0, 46.0), (30.0, 89.0, 91.0)],
)
def test_fresh_is_what_the_scrapes_that_are_seen_make_it(
    scrape_seconds: float | None, fresh: float, old: float
) -> None:
    """Three of them may be missed; until their distance is known, those of the default."""

    def seen(age: float) -> Reason:
        engine = EngineSample(engine="0", running=1.0, gauges_age_seconds=age)
        pods = (PodSample(name="a", ready=True, ready_for_seconds=900.0, engines=(engine,)),)
        observation = Observation(
            time_seconds=1000.0, namespace="n", name="x", desired_replicas=1, pods=pods
        )
        return read_signals(observation, 120.0, scrape_seconds, 0.0).reason

    assert (seen(fresh), seen(old)) == (Reason.METRICS_FRESH, Reason.METRICS_STALE)


def test_the_distance_of_scrapes_is_seen_and_followed() -> None:
    """A tick that comes twice between scrapes does not hide it, and a slower one is believed."""
    seconds = None
    for window in (30.0, 15.0, 30.0, 15.0):
        seconds = seen_scrape_seconds(seconds, [window])
    assert seconds == 15.0
    for _ in range(20):
        seconds = seen_scrape_seconds(seconds, [60.0])
    assert seconds == 60.0
    assert seen_scrape_seconds(seconds, []) == 60.0
