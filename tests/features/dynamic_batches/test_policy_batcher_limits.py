"""Limits of dynamic batches over ticks: found, set on one pod, compared, kept or taken back."""

from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.features.dynamic_batches.search import BatcherMemory
from servingslo.features.dynamic_batches.servers import (
    DYNAMIC_BATCHING,
    BatcherLimits,
    Owner,
    PodBatcher,
    batcher_of,
    values_of,
    with_limits,
)
from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.models.waits.dynamic_batches import BatchTimes, saturation_per_second
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import (
    BatchingMode,
    BatchingTargets,
    InForce,
    Limits,
    Observation,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.trial.stages import (
    COMPARED_WITHIN_SECONDS,
    REFUSED_SECONDS,
    WARM_UP_SECONDS,
)
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

LAW = ServiceLaw(
    step_fixed_seconds=0.15, step_per_sequence_seconds=0.025, prefill_per_token_seconds=0.0
)
FILE = BatcherLimits(2, 1000, 0)
TICK_SECONDS = 15.0
ALLOWED = Limits(batching_apply_enabled=True)
TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="rank"),
    objectives=(Objective(metric=LatencyMetric.LATENCY, percentile=95.0, threshold_seconds=0.7),),
    model="rank",
    replicas=ReplicaTargets(minimum=3, maximum=6),
    batching=BatchingTargets(mode=BatchingMode.AUTO, max_sequences=16),
    cold_start_seconds=30.0,
)


@dataclass
class Server:
    """One pod: its limits and what it has counted. slowed: its mean latency over the law's."""

    limits: BatcherLimits = FILE
    owner: Owner = Owner.NOBODY
    counted: dict[int, tuple[int, int]] = field(default_factory=dict)
    requests: int = 0
    microseconds: int = 0
    queued: float = 0.0
    failed: int = 0
    age: float = 600.0


@cache
def _served(batcher: DynamicBatcher, rate: float) -> BatchTimes:
    return BatchTimes(LAW, batcher, rate)


@dataclass
class World:
    """Servers under one rate each, ticks, and what the operator does to them.

    obeys: servers take limits. slowed, failing: of servers with batches above harmed_above, their
    latency over the law's and the share of requests that fail. ageing: the growth of a batch's time
    from tick to tick.
    """

    rate: float = 6.0
    obeys: bool = True
    slowed: float = 1.0
    failing: float = 0.0
    harmed_above: int = FILE.max_batch_size
    ageing: float = 0.0
    aged: float = 1.0
    targets: Targets = TARGETS
    limits: Limits = ALLOWED
    now: float = 1000.0
    state: PlannerState = field(default_factory=PlannerState)
    servers: dict[str, Server] = field(
        default_factory=lambda: {f"rank-{number}": Server() for number in range(3)}
    )
    problem: SignalProblem | None = None

    def tick(self) -> Decision:
        """Serve for a tick, then decide, then carry it out."""
        self.now += TICK_SECONDS
        self.aged *= 1.0 + self.ageing
        for one in self.servers.values():
            self._serve(one)
        decision, self.state = plan(
            self._observed(), self.targets, self.limits, self.state, self.now
        )
        batcher = batcher_of(decision)
        for pod in () if batcher is None or not self.obeys else batcher.pods:
            one = self.servers[pod]
            limits = FILE if batcher.puts_back else batcher.after or FILE
            owner = Owner.NOBODY if batcher.puts_back else Owner.OURS
            self.servers[pod] = replace(
                Server(limits=limits, owner=owner, age=one.age), queued=one.queued
            )
        return decision

    def until(self, reason: Reason, most: int = 60) -> Decision:
        """Tick until a decision about limits has this reason."""
        for _ in range(most):
            decision = self.tick()
            if batcher_of(decision) is not None and batcher_of(decision).reason is reason:
                return decision
        raise AssertionError(f"never {reason}: {batcher_of(decision)}, {decision.model}")

    def _serve(self, one: Server) -> None:
        batcher = with_limits(one.limits, 1)
        harmed = one.limits.max_batch_size > self.harmed_above
        rate = min(self.rate, 0.97 * saturation_per_second(LAW, batcher))
        times = _served(batcher, rate)
        mean = float(times.weight @ times.latency_seconds) * (self.slowed if harmed else 1.0)
        done = round(rate * TICK_SECONDS)
        failed = round(done * self.failing) if harmed else 0
        one.requests += done - failed
        one.failed += failed
        one.microseconds += round((done - failed) * mean * 1e6)
        one.queued += (done - failed) * float(times.weight @ times.wait_seconds)
        one.age += TICK_SECONDS
        for size in range(1, one.limits.max_batch_size + 1):
            count, took = one.counted.get(size, (0, 0))
            took += round(4 * self.aged * LAW.step_seconds(size) * 1e6)
            one.counted[size] = count + 4, took

    def _observed(self) -> Observation:
        batchers = {
            pod: PodBatcher(
                limits=one.limits,
                owner=one.owner,
                former_max_batch_size=FILE.max_batch_size,
                requests=one.requests,
                request_microseconds=one.microseconds,
                failed=one.failed,
                batches=dict(one.counted),
            )
            for pod, one in self.servers.items()
        }
        standing = InForce(values=values_of(batchers) if self.problem is None else {})
        return Observation(
            time_seconds=self.now,
            namespace="team",
            name="rank",
            desired_replicas=len(self.servers),
            current_replicas=len(self.servers),
            runtime="triton",
            pods=tuple(self._pod(name, one) for name, one in self.servers.items()),
            in_force={DYNAMIC_BATCHING: replace(standing, refused=self.problem)},
        )

    def _pod(self, name: str, one: Server) -> PodSample:
        engine = EngineSample(
            engine="rank",
            runtime="triton",
            gauges_age_seconds=1.0,
            counters_age_seconds=1.0,
            waiting=0.0,
            generation_tokens_total=float(one.requests),
            finished_total={"": float(one.requests)},
            executions_total=float(sum(count for count, _ in one.counted.values())),
            request_seconds_total=one.microseconds / 1e6,
            queued_seconds_total=one.queued,
        )
        return PodSample(
            name=name,
            ready=True,
            age_seconds=one.age,
            ready_after_seconds=10.0,
            ready_for_seconds=one.age - 10.0,
            engines=(engine,),
        )


def test_limits_reach_one_pod_then_all_and_go_no_further_than_the_law_is_known():
    """Batches of two ran, so that four are tried; and after the least interval eight."""
    world = World()
    started = world.until(Reason.BATCHING_CANARY_STARTED)
    assert batcher_of(started) is not None
    assert batcher_of(started).pods == ("rank-2",)
    assert batcher_of(started).after is not None
    assert batcher_of(started).after.max_batch_size == 4
    assert batcher_of(world.tick()).reason is Reason.BATCHING_CANARY_RUNNING
    changed = world.until(Reason.BATCHING_CHANGED)
    assert batcher_of(changed).pods == ("rank-0",)
    assert batcher_of(world.tick()).pods == ("rank-1",)
    assert changed.batching.reason is Reason.BATCHING_CHANGED
    settled = world.until(Reason.BATCHING_IN_SYNC)
    assert {one.limits.max_batch_size for one in world.servers.values()} == {4}
    assert settled.model.source == "statistics"
    again = world.until(Reason.BATCHING_CANARY_STARTED)
    assert again.time_seconds - started.time_seconds >= 600.0
    assert batcher_of(again).after.max_batch_size == 8


def test_a_search_ends_though_the_law_is_renewed_meanwhile():
    """Of a server whose batches take longer from tick to tick."""
    assert World(ageing=0.01).until(Reason.BATCHING_CANARY_STARTED)


def test_a_pod_that_starts_in_a_trial_gets_the_limits_from_before_it():
    """Not the file's, with which it would serve until the trial ends."""
    world = World()
    world.until(Reason.BATCHING_IN_SYNC)
    first = world.until(Reason.BATCHING_CANARY_STARTED)
    second = world.until(Reason.BATCHING_CANARY_STARTED)
    assert batcher_of(second).after.max_batch_size > batcher_of(first).after.max_batch_size
    world.servers["rank-9"] = Server(age=60.0)
    started = world.until(Reason.BATCHING_CHANGED)
    assert batcher_of(started).pods == ("rank-9",)
    assert started.replicas.excluded == 1
    assert world.servers["rank-9"].limits == batcher_of(first).after
    assert batcher_of(world.tick()).reason is Reason.BATCHING_CANARY_RUNNING


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"slowed": 2.0}, "rank-2: a request takes 1.62 times as long as elsewhere"),
        ({"failing": 0.3}, "rank-2: failed: 30.0% of"),
    ],
)
def test_limits_that_prove_worse_are_taken_back_and_not_tried_again(trouble, said):
    """From the one pod that had them; its siblings never had any."""
    world = World(**trouble)
    back = world.until(Reason.BATCHING_ROLLED_BACK)
    assert said in batcher_of(back).detail
    assert {one.limits for one in world.servers.values()} == {FILE}
    for _ in range(20):
        assert not batcher_of(world.tick()).pods


def test_without_requests_limits_go_back_and_are_refused_for_a_day():
    """A quarter of an hour after the comparison began there are fewer than thirty."""
    world = World()
    started = world.until(Reason.BATCHING_CANARY_STARTED)
    world.rate = 0.02
    back = world.until(Reason.BATCHING_CANARY_NOT_COMPARED, most=80)
    waited = back.time_seconds - started.time_seconds
    assert waited >= COMPARED_WITHIN_SECONDS + WARM_UP_SECONDS
    assert waited <= COMPARED_WITHIN_SECONDS + WARM_UP_SECONDS + 2 * TICK_SECONDS
    assert {one.limits for one in world.servers.values()} == {FILE}
    refusal = world.state.knobs[DYNAMIC_BATCHING].refusal
    assert refusal.until_seconds == back.time_seconds + REFUSED_SECONDS
    assert refusal.forbids(FILE, batcher_of(started).after, back.time_seconds)


def test_what_is_taken_back_is_what_stood_before_and_not_the_files():
    """Four were kept; eight harm: the one pod that had them gets four again."""
    world = World()
    world.until(Reason.BATCHING_CHANGED)
    world.until(Reason.BATCHING_CANARY_STARTED)
    world.slowed, world.harmed_above = 2.0, 4
    back = world.until(Reason.BATCHING_ROLLED_BACK)
    assert (batcher_of(back).before.max_batch_size, batcher_of(back).after.max_batch_size) == (8, 4)
    assert not batcher_of(back).puts_back
    world.tick()
    assert {one.limits.max_batch_size for one in world.servers.values()} == {4}


def test_a_pod_alone_is_left_as_it_is():
    """Nothing serves beside it that it could be compared with."""
    targets = replace(TARGETS, replicas=ReplicaTargets(minimum=1, maximum=1))
    world = World(rate=4.0, targets=targets, servers={"rank-0": Server()})
    told = world.until(Reason.BATCHING_CANARY_NOT_POSSIBLE)
    assert "no sibling" in told.batching.detail
    assert not batcher_of(told).pods


def test_a_pod_that_is_new_or_has_drifted_is_set_before_it_counts():
    """It is left out in that tick, and counts in the next."""
    world = World()
    world.until(Reason.BATCHING_CHANGED)
    world.until(Reason.BATCHING_IN_SYNC)
    world.servers["rank-1"] = Server(age=20.0)
    decision = world.tick()
    assert batcher_of(decision).pods == ("rank-1",)
    assert decision.replicas.excluded == 1
    assert world.tick().replicas.excluded == 0
    assert world.servers["rank-1"].limits.max_batch_size == 4


def test_no_replica_is_given_back_for_a_minute_after_a_load():
    """Counters of a model that was loaded begin anew, so that part of what came is missed."""
    world = World()
    world.until(Reason.BATCHING_CHANGED)
    loaded = world.now
    assert world.state.knobs["dynamic-batching"].is_reloading(loaded + 59.0)
    assert not world.state.knobs["dynamic-batching"].is_reloading(loaded + 60.0)
    assert not BatcherMemory().is_reloading(loaded)


def test_a_pod_that_takes_no_limits_is_asked_three_times_and_counts_then():
    """With what it has: nothing is ordered for ever on top of a pod that serves."""
    world = World()
    world.until(Reason.BATCHING_CHANGED)
    world.until(Reason.BATCHING_IN_SYNC)
    world.servers["rank-1"], world.obeys = Server(), False
    asked = [world.tick() for _ in range(20)]
    assert [bool(batcher_of(one).pods) for one in asked[:9]] == 2 * [True, False, False, False] + [
        True
    ]
    assert asked[3].replicas.excluded == 1
    assert asked[-1].replicas.excluded == 0


def test_one_that_never_takes_them_at_all_ends_the_trial():
    """The search goes on with others."""
    world = World(obeys=False)
    failed = world.until(Reason.BATCHING_CANARY_FAILED)
    assert "does not take 4/0/0" in batcher_of(failed).detail
    assert {one.limits for one in world.servers.values()} == {FILE}


def test_an_operator_that_starts_anew_finds_its_limits_on_the_pods():
    """It neither takes them for the file's nor searches before the others have them."""
    world = World()
    world.until(Reason.BATCHING_CHANGED)
    world.tick()
    world.state = PlannerState()
    world.servers["rank-1"] = Server()
    world.tick()
    assert world.servers["rank-1"].limits.max_batch_size == 4


def test_an_operator_that_starts_anew_in_a_trial_gives_the_first_pod_its_time():
    """When that pod got its limits is not known; without requests yet they are not refused."""
    world = World()
    world.until(Reason.BATCHING_CANARY_STARTED)
    world.tick()
    world.state = PlannerState()
    decisions = [batcher_of(world.tick()) for _ in range(8)]
    assert Reason.BATCHING_CANARY_NOT_COMPARED not in {one.reason for one in decisions if one}


@pytest.mark.parametrize("mode", [BatchingMode.RECOMMEND, BatchingMode.OFF])
def test_nothing_is_set_unless_it_is_asked_for(mode):
    """Recommend tells what would be better; Off says nothing of it."""
    world = World(targets=replace(TARGETS, batching=BatchingTargets(mode=mode, max_sequences=16)))
    told = [world.tick() for _ in range(40)]
    assert not any(batcher_of(one) and batcher_of(one).pods for one in told)
    reason = told[-1].batching.reason
    wanted = Reason.BATCHING_OFF if mode is BatchingMode.OFF else Reason.BATCHING_RECOMMENDED
    assert reason is wanted


def test_why_servers_cannot_be_read_is_told():
    """And nothing is set."""
    problem = SignalProblem(reason=Reason.NOT_PERMITTED, detail="in none of the ranges")
    decision = World(problem=problem).tick()
    assert decision.batching.reason is Reason.NOT_PERMITTED
    assert decision.batching.detail == "in none of the ranges"
    assert batcher_of(decision) is not None
    assert batcher_of(decision).pods == ()


def test_the_switch_that_forbids_batch_limits_forbids_those_of_servers() -> None:
    """They are recommended with what is missing, and no server is asked to take any."""
    world = World(limits=Limits())
    told = world.until(Reason.NOT_PERMITTED)
    assert batcher_of(told) is not None
    assert batcher_of(told).after is not None
    assert "the administrator lets no batch limits be changed" in told.batching.detail
    for _ in range(20):
        decision = world.tick()
        assert batcher_of(decision) is not None
        assert batcher_of(decision).pods == ()
    assert {one.limits for one in world.servers.values()} == {FILE}


def test_limits_of_servers_stay_where_the_switch_is_turned_off_later() -> None:
    """Neither others are set nor the former ones put back, and every pod stays capacity."""
    world = World()
    world.until(Reason.BATCHING_CHANGED)
    for _ in range(8):
        world.tick()
    stand = {pod: one.limits for pod, one in world.servers.items()}
    assert FILE not in stand.values()
    world.limits = Limits()
    for _ in range(20):
        decision = world.tick()
        assert decision.replicas.excluded == 0
    assert {pod: one.limits for pod, one in world.servers.items()} == stand


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("servers_only", [False, True])
def test_servers_alone_narrows_the_switch_and_opens_nothing(enabled, servers_only) -> None:
    """Pod templates are patched only where both allow it."""
    limits = Limits(batching_apply_enabled=enabled, batching_servers_only=servers_only)
    assert limits.pod_templates_patched == (enabled and not servers_only)
    assert limits.batching_apply_enabled == enabled
