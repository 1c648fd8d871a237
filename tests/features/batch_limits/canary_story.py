"""A fleet with a canary of batch limits, and what a cluster does with what is ordered of it."""

from dataclasses import dataclass, replace

from tests.unit.policy_world import Pod, Run, World

from servingslo.features.batch_limits.canary import (
    AFTER,
    BEFORE,
    EDITED,
    HELD,
    NEW_PODS,
)
from servingslo.features.batch_limits.decision import CanaryAct
from servingslo.features.batch_limits.engine_bound import REFUSED
from servingslo.features.batch_limits.memory import BatchingMemory
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    LIMIT_FIELDS,
    BatchingMode,
    BatchingTargets,
    InForce,
    Limits,
    ReplicaTargets,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.decisions import BATCH_LIMITS, GATEWAY_LIMITS
from servingslo.policy.knobs.in_flight.engines import QUEUE, SINCE
from servingslo.policy.replicas.state import PlannerState

TARGETS = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama"),
    objectives=(
        Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0),
        Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
    ),
    replicas=ReplicaTargets(minimum=4, maximum=4),
    batching=BatchingTargets(mode=BatchingMode.AUTO),
)
ALLOWED = Limits(batching_apply_enabled=True)
FEW = 4
RATE_PER_SECOND = 9.0
OLD, NEW = "t1", "t2"
# Of engines that have no bound of their own.
UNKNOWN = object()


class Fleet(World):
    """A world in which pods of the new template have limits, and a speed, of their own."""

    new_max_num_seqs = None

    def _start_ready(self):
        old = self.max_num_seqs
        for pod in self.pods:
            if pod.ready_at <= self.now and pod.name not in self.service.engines:
                self.max_num_seqs = self.new_max_num_seqs if pod.template == NEW else old
                self.service.add(pod.name, self._engine(pod.slowness), self.now)
        self.max_num_seqs = old


@dataclass
class Story(Run):
    """What the cluster does with a canary: the new pod's steps take `slowness` times as long.

    queue: the engines' own bound in the template, None without one.
    comes: whether it becomes ready at all. edited: somebody changes the template meanwhile.
    """

    slowness: float = 1.0
    comes: bool = True
    edited: bool = False
    refused: SignalProblem | None = None
    standing: dict | None = None
    acts: tuple = ()
    queue: object = UNKNOWN
    refused_queue: int | None = None

    def tick(self):
        """One tick, and what it orders of the canary."""
        given = self.world.observe
        found = {BATCH_LIMITS: self._in_force(), GATEWAY_LIMITS: InForce()}
        self.world.observe = lambda at: replace(given(at), in_force=found)
        try:
            decision = super().tick()
        finally:
            self.world.observe = given
        batching = decision.batching
        if batching.apply:
            self.acts += (batching,)
            self._carry_out(batching)
        return decision

    def until_act(self, act, within=2400.0):
        """Tick until this is ordered; its decision."""
        end = self.world.now + within
        while self.world.now < end:
            batching = self.tick().batching
            if batching.apply and batching.canary is act:
                return batching
        told = {d.batching.reason for d in self.decisions}
        raise AssertionError(f"no {act} within {within} s: {told}")

    def _in_force(self):
        values = {} if self.standing is None else {**self.standing, EDITED: int(self.edited)}
        values |= {} if self.queue is UNKNOWN else {QUEUE: self.queue}
        values |= {} if self.refused_queue is None else {f"{REFUSED}{QUEUE}": self.refused_queue}
        return InForce(values=values, refused=self.refused)

    def _carry_out(self, batching):
        world = self.world
        if batching.canary is CanaryAct.START:
            before = (batching.current_max_num_seqs, batching.current_max_num_batched_tokens)
            after = (
                batching.recommended_max_num_seqs,
                batching.recommended_max_num_batched_tokens,
            )
            named = [(f"{BEFORE}{n}", v) for n, v in zip(LIMIT_FIELDS, before, strict=True)]
            named += [(f"{AFTER}{n}", v) for n, v in zip(LIMIT_FIELDS, after, strict=True)]
            self.standing = {SINCE: int(world.now), HELD: 0, NEW_PODS: 1, **dict(named)}
            if batching.queue:
                self.standing[f"{BEFORE}{QUEUE}"] = batching.queue[0]
                self.standing[f"{AFTER}{QUEUE}"] = self.queue = batching.queue[1]
            world.new_max_num_seqs = after[0]
            world.rollout = True
            ready_at = world.now + world.cold_start if self.comes else float("inf")
            world.pods.append(Pod("llama-new", world.now, ready_at, NEW, slowness=self.slowness))
        elif batching.canary is CanaryAct.HOLD:
            self.standing[HELD] = 1
        else:
            self.standing = None
            world.rollout = False
            gone = [pod for pod in world.pods if pod.template == NEW]
            if batching.canary is CanaryAct.TAKE_BACK:
                refused = (batching.current_max_num_seqs, batching.current_max_num_batched_tokens)
                named = zip(LIMIT_FIELDS, refused, strict=True)
                self.standing = {f"{REFUSED}{name}": value for name, value in named}
                if batching.queue:
                    self.refused_queue, self.queue = batching.queue
                for pod in gone:
                    world.pods.remove(pod)
                    if pod.name in world.service.engines:
                        world.service.remove(pod.name, world.now, drain=True)


def story(targets=TARGETS, *, limits=FEW, rate=RATE_PER_SECOND, seed=1, **settings):
    """Engines that may run four sequences only, while more would serve within the objectives."""
    world = Fleet(
        rate=lambda _: rate,
        replicas=targets.replicas.minimum,
        max_num_seqs=limits,
        cold_start=30.0,
        seed=seed,
    )
    return Story(world, targets, ALLOWED, **settings)


def memory_of(state: PlannerState) -> BatchingMemory:
    """What is remembered of batch limits."""
    found = state.knobs.get(BATCH_LIMITS)
    return found if isinstance(found, BatchingMemory) else BatchingMemory()
