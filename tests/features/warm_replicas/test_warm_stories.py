"""Faults in virtual time: whatever happens, no request is lost to sleep, and no sleeper forgotten.

1. No pod with requests is put to sleep, and none that has not been out of the traffic for a while.
2. No order takes pods out such that fewer than `replicas.min` serve.
3. In mode Recommend nothing is ordered.
4. A sleeper that gets requests all the same is ordered to wake at the next scrape.
5. Once metrics are gone for longer than the fallback waits, all on call are ordered to wake.
6. No more than `warm.max` are taken out.
"""

import random
from dataclasses import dataclass, field, replace

import pytest
from tests.unit.policy_world import REPLICAS_ONLY, run, stepped
from tests.unit.world_gateway import Gated

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.pods.health import RECEIVING_NOTHING
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.features.warm_replicas.call import (
    ON_CALL,
    SERVES,
    TARGETS,
    WARM_REPLICAS,
    WarmDecision,
    WarmTargets,
    warm_of,
)
from servingslo.features.warm_replicas.knob import DRAIN_SECONDS
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.facts import Facts
from servingslo.policy.inputs import (
    Actuation,
    BatchingMode,
    BatchingTargets,
    InForce,
    Limits,
    Mode,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

TICK_SECONDS = 15.0
BEGIN_SECONDS = 1_700_000_000.0
STORIES, TICKS = 200, 80
LONG_SECONDS = 300.0


@dataclass
class Pod:
    """A pod of the target. since: when it was taken out, None while it takes requests."""

    name: str
    ready_at: float
    running: int = 0
    waiting: int = 0
    tokens: int = 0
    done: int = 0
    since: float | None = None
    asleep: bool = False


@dataclass
class Story:
    """A target whose engines sleep, with what may go wrong drawn from a seed."""

    seed: int
    now: float = BEGIN_SECONDS
    pods: list[Pod] = field(default_factory=list)
    state: PlannerState = field(default_factory=PlannerState)
    made: int = 0
    blind_since: float | None = None
    mode: Mode = Mode.AUTO
    refused: bool = False
    slept: int = 0
    woken: int = 0
    disturbed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  a story, no secret
        self.minimum = self.random.randint(1, 3)
        self.most = self.random.randint(1, 4)
        self.stated = WarmTargets(
            least=self.random.randint(0, self.most), most=self.most, cost_ratio=0.1
        )
        self.desired = self.random.randint(self.minimum, 6)
        self._follow()
        for pod in self.pods:
            pod.ready_at = self.now - 3600.0

    @property
    def targets(self) -> Targets:
        """The resource as it is now."""
        return Targets(
            target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat"),
            objectives=(
                Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
            ),
            mode=self.mode,
            replicas=ReplicaTargets(minimum=self.minimum, maximum=8),
            batching=BatchingTargets(mode=BatchingMode.OFF),
            features={TARGETS.name: self.stated},
        )

    def _follow(self) -> None:
        """Kubernetes makes and removes pods; those on call first."""
        while len(self.pods) < self.desired:
            self.made += 1
            self.pods.append(Pod(f"chat-{self.made}", self.now + 90.0))
        order = sorted(self.pods, key=lambda one: (one.ready_at <= self.now, one.since is None))
        for pod in order[: len(self.pods) - self.desired]:
            self.pods.remove(pod)

    @property
    def serving(self) -> list[Pod]:
        """Ready pods that take requests and are awake."""
        return [
            one
            for one in self.pods
            if one.ready_at <= self.now and one.since is None and not one.asleep
        ]

    def _fault(self) -> None:
        """What may happen between two ticks."""
        draw, pods = self.random.random(), self.pods
        if draw < 0.03:
            self.blind_since = self.now if self.blind_since is None else None
        elif draw < 0.05:
            self.mode = Mode.RECOMMEND if self.mode is Mode.AUTO else Mode.AUTO
        elif draw < 0.07:
            self.refused = not self.refused
        elif draw < 0.09 and pods:
            pods.remove(self.random.choice(pods))
            self._follow()
        elif draw < 0.12 and (asleep := [one for one in pods if one.asleep]):
            # A client that knows its address.
            self.random.choice(asleep).waiting += 1

    def _traffic(self) -> None:
        """Requests end; new ones come in bursts, with silence between them."""
        busy = (self.now - BEGIN_SECONDS) % 600.0 < 120.0
        for pod in self.pods:
            if pod.asleep:
                continue
            pod.done += pod.running
            pod.tokens += 100 * pod.running
            pod.running, pod.waiting = pod.waiting, 0
        for pod in self.serving:
            pod.running += self.random.randint(0, 40) if busy else 0

    def tick(self) -> WarmDecision | None:
        """One tick: traffic, faults, the plan, and what the actuator makes of it."""
        self.now += TICK_SECONDS
        self._traffic()
        self._fault()
        observation = self.observed()
        self.disturbed = {
            one.name for one in self.pods if one.asleep and one.waiting and one.since is not None
        }
        decision, self.state = plan(
            observation, self.targets, Limits(), self.state, observation.time_seconds
        )
        decided = warm_of(decision.knobs)
        self.check(decided)
        if decision.apply_replicas and decision.replicas_after is not None:
            self.desired = decision.replicas_after
            self._follow()
        if decided is not None and not self.refused:
            self._carry_out(decided)
        return decided

    def observed(self) -> Observation:
        """What is read, without metrics while they are gone."""
        problem = SignalProblem(reason=Reason.NOT_PERMITTED, detail="refused")
        return Observation(
            time_seconds=self.now,
            namespace="team-a",
            name="chat",
            desired_replicas=self.desired,
            current_replicas=len(self.pods),
            runtime="vllm",
            pods=tuple(map(self._sample, self.pods)),
            in_force={
                WARM_REPLICAS: InForce(
                    values={
                        one.name: SERVES if one.since is None else ON_CALL for one in self.pods
                    },
                    refused=problem if self.refused else None,
                )
            },
        )

    def _sample(self, pod: Pod) -> PodSample:
        ready, engines = pod.ready_at <= self.now, ()
        if ready and self.blind_since is None:
            engines = (
                EngineSample(
                    engine="0",
                    runtime="vllm",
                    gauges_age_seconds=2.0,
                    counters_age_seconds=2.0,
                    histograms_age_seconds=2.0,
                    running=float(pod.running),
                    waiting=float(pod.waiting),
                    kv_usage_ratio=min(pod.running / 100.0, 1.0),
                    prompt_tokens_total=float(pod.tokens),
                    generation_tokens_total=float(pod.tokens),
                    finished_total={"stop": float(pod.done)},
                    sleep_states={"awake": float(not pod.asleep)},
                ),
            )
        return PodSample(
            name=pod.name,
            ready=ready,
            age_seconds=self.now - pod.ready_at + 90.0,
            ready_after_seconds=90.0 if ready else None,
            ready_for_seconds=self.now - pod.ready_at if ready else None,
            engines=engines,
        )

    def _carry_out(self, decided: WarmDecision) -> None:
        """Each order may fail by itself."""
        named = {one.name: one for one in self.pods}
        for name in decided.wakes:
            if name in named and self.random.random() > 0.1:
                pod = named[name]
                pod.asleep, pod.since = False, None
                self.woken += 1
        for name in decided.sleeps:
            if name in named and self.random.random() > 0.1:
                named[name].asleep = True
                self.slept += 1
        for name in decided.takes_out:
            if name in named and self.random.random() > 0.1:
                named[name].since = self.now

    def check(self, decided: WarmDecision | None) -> None:
        """The rules."""
        assert decided is not None
        named = {one.name: one for one in self.pods}
        for name in decided.sleeps:
            pod = named[name]
            assert pod.running + pod.waiting == 0
            assert pod.since is not None
            assert self.now - pod.since >= DRAIN_SECONDS
        if decided.takes_out:
            assert len(self.serving) - len(decided.takes_out) >= self.minimum
            out = [one for one in self.pods if one.since is not None]
            assert len(out) + len(decided.takes_out) <= self.most
        if self.mode is Mode.RECOMMEND:
            assert not decided.orders
            return
        if self.blind_since is None:
            assert self.disturbed <= set(decided.wakes)
        elif self.now - self.blind_since > LONG_SECONDS:
            assert set(decided.on_call) == set(decided.wakes)


@pytest.mark.parametrize("first", range(0, STORIES, 20))
def test_whatever_happens_no_request_is_lost_to_sleep(first: int) -> None:
    """Twenty stories of twenty minutes each."""
    stories = [Story(seed) for seed in range(first, first + 20)]
    for story in stories:
        for _ in range(TICKS):
            story.tick()
    assert sum(one.slept for one in stories) > 0
    assert sum(one.woken for one in stories) > 0


class Stuck(Story):
    """The first sleeper in the order of names never wakes."""

    def _fault(self) -> None:
        pass

    def _traffic(self) -> None:
        for pod in self.serving:
            pod.waiting = 100

    def _carry_out(self, decided: WarmDecision) -> None:
        wakes = tuple(name for name in decided.wakes if name != "chat-1")
        for pod in self.pods:
            if pod.name in wakes:
                pod.asleep, pod.since = False, None


def test_an_engine_that_does_not_wake_keeps_no_other_asleep() -> None:
    """Both sleep; whatever is missing, the second one serves at the second tick."""
    story = Stuck(1)
    story.minimum, story.stated = 1, WarmTargets(least=1, most=2, cost_ratio=0.1)
    story.desired, story.pods = 3, [Pod(f"chat-{n}", 0.0) for n in (1, 2, 3)]
    for pod in story.pods[:2]:
        pod.asleep, pod.since = True, story.now
    story.minimum = 2
    story.tick()
    story.tick()
    assert "chat-2" in {pod.name for pod in story.serving}


class Untold(Story):
    """Engines of a version that has no metric of sleep."""

    def _fault(self) -> None:
        pass

    def _sample(self, pod: Pod) -> PodSample:
        found = super()._sample(pod)
        return replace(found, engines=tuple(replace(one, sleep_states={}) for one in found.engines))


def test_an_engine_that_does_not_tell_that_it_sleeps_is_not_put_to_sleep() -> None:
    """Requests that reach it all the same would not be seen to wait; that is told."""
    told, stories = set(), [Untold(seed) for seed in range(5)]
    for story in stories:
        for _ in range(TICKS):
            decided = story.tick()
            assert decided is not None
            assert not decided.takes_out
            told.add(decided.detail)
    assert "no engine tells whether it sleeps" in told


class Labelled(Gated):
    """Nobody sleeps; the runtime is stated, so that it is known without a pod."""

    def observe(self, at: float) -> Observation:
        """With the label of each pod, and engines that tell that they are awake."""
        seen = super().observe(at)
        labels = {pod.name: SERVES for pod in seen.pods}
        pods = tuple(
            replace(
                pod, engines=tuple(replace(e, sleep_states={"awake": 1.0}) for e in pod.engines)
            )
            for pod in seen.pods
        )
        return replace(seen, pods=pods, in_force={WARM_REPLICAS: InForce(values=labels)})


def test_a_pod_on_call_is_no_capacity_though_it_seems_to_receive_nothing() -> None:
    """Where most receive nothing, the routing is doubted and they count; these are known."""
    estimate = update(EstimatorState(), FleetSample(time_seconds=0.0, pods=()))[1]
    estimate = replace(estimate, unreliable_pods=(("chat-1", RECEIVING_NOTHING),))
    marked = Facts(not_capacity=(("chat-1", "asleep: on call"),)).mark_pods(estimate)
    assert marked.unreliable_pods == (("chat-1", "asleep: on call"),)


def test_none_is_taken_out_while_the_count_changes() -> None:
    """The count is written first: Kubernetes could remove the pods that were to stay."""
    targets = replace(
        REPLICAS_ONLY,
        replicas=ReplicaTargets(minimum=1, maximum=12),
        features={TARGETS.name: WarmTargets(least=1, most=2, cost_ratio=0.9)},
    )
    world = Labelled(rate=stepped((0, 3.0), (600, 0.0)), replicas=2)
    story = run(world, targets).until(900)
    ordered = [(d, warm) for d in story.decisions if (warm := warm_of(d.knobs)) is not None]
    assert any(warm.takes_out for _, warm in ordered)
    assert any(decision.apply_replicas for decision, _ in ordered)
    assert not [d for d, warm in ordered if d.apply_replicas and warm.takes_out]


def test_a_count_that_nobody_carries_out_keeps_none_awake() -> None:
    """Another client may leave it as it is for ever."""
    targets = replace(
        REPLICAS_ONLY,
        actuation=Actuation.NONE,
        replicas=ReplicaTargets(minimum=1, maximum=12),
        features={TARGETS.name: WarmTargets(most=2, cost_ratio=0.9)},
    )
    story = run(Labelled(rate=stepped((0, 3.0), (300, 0.0)), replicas=6), targets).until(1200)
    last = story.decisions[-1]
    warm = warm_of(last.knobs)
    assert last.recommended_replicas != last.replicas_after
    assert warm is not None
    assert warm.takes_out


def test_what_is_needed_awake_is_told_also_in_recommend() -> None:
    """Fewer than there are; nothing is ordered."""
    targets = replace(
        REPLICAS_ONLY,
        mode=Mode.RECOMMEND,
        replicas=ReplicaTargets(minimum=1, maximum=12),
        features={TARGETS.name: WarmTargets(most=2, cost_ratio=0.9)},
    )
    story = run(Labelled(rate=stepped((0, 3.0), (300, 0.0)), replicas=6), targets).until(1200)
    warm = warm_of(story.decisions[-1].knobs)
    assert warm is not None
    assert (warm.awake, warm.orders) == (1, False)


def test_a_target_at_zero_stays_there_until_requests_come() -> None:
    """Nothing sleeps at zero, so nothing is kept on call."""
    world = Labelled(rate=stepped((0, 3.0), (600, 0.0)), replicas=2)
    stated = WarmTargets(most=2, cost_ratio=0.9)
    targets = replace(
        REPLICAS_ONLY,
        replicas=ReplicaTargets(minimum=0, maximum=12, idle_seconds=600.0),
        features={TARGETS.name: stated},
    )
    story = run(world, targets).until(2400)
    counts = [one.replicas_after for one in story.decisions]
    assert 0 in counts
    assert set(counts[counts.index(0) :]) == {0}


def test_the_rules_find_a_planner_that_breaks_them() -> None:
    """An order that puts a busy pod to sleep, takes the last one out, or comes in Recommend."""
    story = Story(1)
    decided = story.tick()
    assert decided is not None
    pod, every = story.serving[0], tuple(one.name for one in story.serving)
    pod.running, pod.since = 3, story.now - 60.0
    for bad in (
        replace(decided, sleeps=(pod.name,)),
        replace(decided, takes_out=every),
    ):
        with pytest.raises(AssertionError):
            story.check(bad)
    story.mode = Mode.RECOMMEND
    with pytest.raises(AssertionError):
        story.check(replace(decided, wakes=(pod.name,)))
