"""The truth: engines under load, an API server with people and controllers on it, and time.

Implements the operator's ports. What goes wrong is set from outside (`story`); what was written is
kept in `writes`, each with what was in force on the server at that moment, for the checker.
"""

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.prometheus import NAMESPACE, SCRAPE_SECONDS, FakePrometheus
from tests.unit.controller_fakes import merged
from tests.unit.policy_world import World

from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.api.v1alpha1.status import ServingSLOStatus
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NotFoundError,
    WriteConflictError,
)
from servingslo.policy.inputs import ScaleTarget, SignalProblem
from servingslo.policy.ports import ClusterMetrics, EngineArguments, WorkloadView
from servingslo.reasons import Reason

NAME, TARGET, RIVAL = "llama-chat", "llama", "llama-older"
EPOCH = 1_700_000_000.0
OURS = "servingslo-operator"
# A watch that is silent for longer is given up by the operator's caches: what is seen is no older.
WATCH_SECONDS = 20.0
# A scrape comes this long before the tick that it is of.
SCRAPE_PHASE_SECONDS = 13.0


class Killed(BaseException):
    """The operator's process ends here, with nothing more done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A count that the API server took from the operator, and what was in force there then.

    spec: of the ServingSLO that is the older owner of the target; None where there is none.
    others: who else owned the count. reading: how many readings of metrics there had been.
    failed: why that reading was none. unseen: ready pods without a sample of the last two minutes
    in it. gross: pods whose numbers nobody may take for true. rate: the greatest true rate around
    now, and lasting: the least of the last ten minutes and of now. waiting: requests in queues, at
    most in the last five minutes.
    sick: pods that are slow or lie. requested: since the operator began to make this request.
    target: what was scaled. unseen, gross: of its own pods, and those of another target whose pods
    are all unseen or all gross. ordered: counts of all targets after it. edited: whether somebody
    else set the count of another one in the last minute.
    """

    at: float
    before: int
    after: int
    spec: Mapping[str, Any] | None
    others: tuple[str, ...]
    reading: int
    failed: str | None
    unseen: tuple[str, ...]
    gross: tuple[str, ...]
    rate: float
    lasting: float
    waiting: float
    ready: int
    cold_start: float
    sick: int
    target: str = TARGET
    ordered: Mapping[str, int] = field(default_factory=dict)
    edited: bool = False


@dataclass
class Fault:
    """A fault of requests to the API server. share: of the requests that it meets."""

    kind: str
    share: float


@dataclass
class Cluster:
    """Engines, API server, watch and clock. `at_point` is told of each step of the operator.

    worlds: by target. struck: the one that faults and people act on now; `world` is its.
    """

    worlds: dict[str, World]
    rng: random.Random
    peak_rate: Callable[[float, float], float]
    least_rate: Callable[[float, float], float]
    at_point: Callable[[str], None] = lambda _point: None
    now: float = 0.0
    wall_offset: float = 0.0
    records: dict[str, ResourceRecord] = field(default_factory=dict)
    struck: str = ""
    scaled_by: dict[str, tuple[str, ...]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    watch_gap: bool = False
    gone: set = field(default_factory=set)
    set_by: dict[str, str] = field(default_factory=dict)
    edits: dict[str, float] = field(default_factory=dict)
    sick: set = field(default_factory=set)
    writes: list[Write] = field(default_factory=list)
    status_writes: int = 0
    events: int = 0
    requests: int = 0
    on_record: Callable[[], None] = lambda: None
    _queues: dict[str, list] = field(default_factory=dict)
    _ills: list = field(default_factory=list)
    _views: dict[str, WorkloadView] = field(default_factory=dict)
    _viewed: dict[str, float] = field(default_factory=dict)
    _last_sight: dict[str, tuple] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prometheus = FakePrometheus(lambda: self.now, self.spend)
        self._scraped_until = self.now
        self.struck = self.struck or next(iter(self.worlds))

    @property
    def world(self) -> World:
        """Of the target that is struck now."""
        return self.worlds[self.struck]

    @property
    def engines(self) -> dict:
        """All that serve, by pod."""
        worlds = self.worlds.values()
        return {name: engine for w in worlds for name, engine in w.service.engines.items()}

    @property
    def pods(self) -> list:
        """The pods of all targets."""
        return [pod for world in self.worlds.values() for pod in world.pods]

    # Time

    def now_seconds(self) -> float:
        """The wall clock of the operator."""
        return EPOCH + self.now + self.wall_offset

    def spend(self, seconds: float) -> None:
        """Time passes: engines serve, Prometheus scrapes."""
        self.pass_to(self.now + seconds)

    def pass_to(self, at: float) -> None:
        """As `spend`, up to a time."""
        while (due := self._scraped_until + SCRAPE_SECONDS) <= at:
            for world in self.worlds.values():
                world.advance(due)
            self.prometheus.scrape(due, self.engines)
            self._count_queues(due)
            self._scraped_until = due
        self.now = max(self.now, at)
        for world in self.worlds.values():
            if at > world.now:
                world.advance(at)
            world.records.clear()
        self._count_queues(self.now)
        self._ills.append((self.now, len(self.sick)))

    def _count_queues(self, at: float) -> None:
        for name, world in self.worlds.items():
            service = world.service
            engines = (*service.engines.values(), *service.draining.values())
            waiting = sum(engine.waiting for engine in engines)
            self._queues.setdefault(name, []).append((at, waiting))

    def thaw(self, seconds: float) -> None:
        """The operator stands still for so long; a second later pods are scraped once more.

        So the first window of each engine that it then sees is of one second.
        """
        self.pass_to(self.now + seconds)
        due = self._scraped_until + SCRAPE_SECONDS
        self.pass_to(max(due - 1.0, self.now))
        self.prometheus.scrape(self.now, self.engines)

    # The API server

    def _request(self, *, writes: bool = False) -> str:
        """What becomes of a request: '' where it is served, 'cut' where only the answer is lost."""
        self.requests += 1
        for fault in self.faults:
            if self.rng.random() >= fault.share:
                continue
            match fault.kind:
                case "timeout":
                    self.spend(5.0)
                    raise ClusterUnavailableError("no answer in time")
                case "cut":
                    if writes:
                        return "cut"
                    raise ClusterUnavailableError("connection reset")
                case "500":
                    raise ClusterUnavailableError("500 etcdserver: leader changed")
                case "429":
                    raise ClusterUnavailableError("429 too many requests")
                case "409":
                    raise WriteConflictError("409 the object has been modified")
                case "410":
                    raise ClusterError("410 resource version too old")
        return ""

    def owner(self) -> ResourceRecord | None:
        """The oldest ServingSLO."""
        found = sorted(self.records.values(), key=lambda r: (r.created_seconds, r.ref.uid))
        return found[0] if found else None

    async def read_all(self) -> tuple[ResourceRecord, ...]:
        """Every ServingSLO."""
        self._request()
        return tuple(self.records.values())

    async def read_record(self, ref: ResourceRef) -> ResourceRecord:
        """One ServingSLO."""
        self.at_point("look")
        self._request()
        if ref.name not in self.records:
            raise NotFoundError(f"{ref.name} not found")
        found = self.records[ref.name]
        self.at_point("looked")
        return found

    async def patch_status(self, ref: ResourceRef, changed: Mapping[str, Any]) -> None:
        """Merge into a status that the CRD allows."""
        self.at_point("status")
        cut = self._request(writes=True)
        known = self.records.get(ref.name)
        if known is None:
            raise NotFoundError(f"{ref.name} not found")
        if known.ref.uid != ref.uid:
            raise WriteConflictError("another uid")
        status = merged(known.status, changed)
        ServingSLOStatus.model_validate(status)
        self.records[ref.name] = replace(known, status=copy.deepcopy(status))
        self.status_writes += 1
        self.at_point("status-written")
        if cut:
            raise ClusterUnavailableError("connection reset")

    async def post(self, ref: ResourceRef, event: object, _now: float) -> None:
        """An event."""
        self.at_point("event")
        self._request()
        self.events += 1

    def forget(self, ref: ResourceRef) -> None:
        """Nothing is kept of events."""

    async def scale(self, namespace: str, target: ScaleTarget, before: int, after: int) -> None:
        """A JSON Patch of /scale with a test of the count."""
        self.at_point("write")
        cut = self._request(writes=True)
        if target.name in self.gone:
            raise NotFoundError("the target is gone")
        world = self.worlds[target.name]
        if world.desired != before:
            raise WriteConflictError(f"replicas are {world.desired}, not {before} any more")
        self._record(target.name, before, after)
        self.pass_to(self.now)
        world.scale(after)
        self.set_by[target.name] = OURS
        self.at_point("written")
        if cut:
            raise ClusterUnavailableError("connection reset")

    def _record(self, target: str, before: int, after: int) -> None:
        self.pass_to(self.now)
        owner, world = self.owner(), self.worlds[target]
        failed, unseen, gross = self._last_sight.get(target, (None, (), ()))
        self.writes.append(
            Write(
                at=self.now,
                before=before,
                after=after,
                spec=None if owner is None else owner.spec,
                others=(
                    *self.scaled_by.get(target, ()),
                    *(() if owner is None or owner.ref.name == NAME else (owner.ref.name,)),
                ),
                reading=self.prometheus.readings,
                failed=failed,
                unseen=unseen,
                gross=gross,
                rate=self.peak_rate(self.now - 900.0, self.now + 300.0),
                lasting=self.least_rate(self.now - 600.0, self.now),
                waiting=max(n for at, n in self._queues[target] if at >= self.now - 300.0),
                ready=len(world.service.engines),
                cold_start=world.cold_start,
                sick=max(n for at, n in self._ills if at >= self.now - 600.0),
                target=target,
                ordered={
                    name: after if name == target else one.desired
                    for name, one in self.worlds.items()
                },
                edited=any(
                    name != target and at >= self.now - 60.0 for name, at in self.edits.items()
                ),
            )
        )

    # What is seen of the target

    def invalidate(self, namespace: str, target: ScaleTarget) -> None:
        """The next look passes over the watch."""
        self._viewed.pop(target.name, None)

    async def read_workload(self, target: ScaleTarget) -> WorkloadView:
        """What the watch has told, or a look where it is too old."""
        self.at_point("view")
        if target.name in self.gone:
            problem = SignalProblem(reason=Reason.TARGET_NOT_FOUND, detail=target.name)
            return WorkloadView(target=target, problems=(problem,))
        view = self._views.get(target.name)
        age = self.now - self._viewed.get(target.name, -math.inf)
        old = age > WATCH_SECONDS or (not self.watch_gap and age > 0.0)
        if view is None or old:
            try:
                self._request()
            except ClusterError as error:
                problem = SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail=str(error))
                if view is None or age > WATCH_SECONDS:
                    return WorkloadView(target=target, problems=(problem,))
                return replace(view, problems=(*view.problems, problem))
            view = self._views[target.name] = self._seen(target)
            self._viewed[target.name] = self.now
        return view

    def _seen(self, target: ScaleTarget) -> WorkloadView:
        world = self.worlds[target.name]
        limits = world.spec.limits
        stated = EngineArguments(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        pods = tuple(
            replace(world._pod(pod, 0.0), engines=(), gpus=(), restarts=getattr(pod, "restarts", 0))
            for pod in world.pods
        )
        return WorkloadView(
            target=target,
            desired_replicas=world.desired,
            replicas_set_by=self.set_by.get(target.name),
            current_replicas=len(world.pods),
            rollout_in_progress=world.rollout,
            pods=pods,
            arguments={pod.name: stated for pod in pods},
            problems=tuple(map(_scaler, self.scaled_by.get(target.name, ()))),
        )

    async def other_scalers(self, namespace: str, target: ScaleTarget) -> tuple:
        """Who else scales the target, on the server."""
        self.at_point("scalers")
        self._request()
        return tuple(map(_scaler, self.scaled_by.get(target.name, ())))

    def saw(self, metrics: ClusterMetrics) -> None:
        """A reading has come to the operator: how good it was, by what Prometheus had."""
        down = self.prometheus.down or self.prometheus.empty
        found = {name: self._sight(world) for name, world in self.worlds.items()}
        for name, (_, unseen, gross) in found.items():
            others = [one for other, one in found.items() if other != name]
            blind = [pod for ready, lost, _ in others if len(lost) == len(ready) for pod in lost]
            false = [pod for ready, _, lies in others if len(lies) == len(ready) for pod in lies]
            failed = "no metrics" if down else None
            self._last_sight[name] = failed, (*unseen, *blind), (*gross, *false)
        self.prometheus.readings += 1

    def _sight(self, world: World) -> tuple[list, tuple, tuple]:
        """Pods that have long been ready, those of them that are unseen, and that lie grossly."""
        ready = [p.name for p in world.pods if p.ready_at <= self.now - 90.0]
        # A page that is stamped by a clock ahead is in no answer yet.
        told_at = self.prometheus.told_at
        pages = {
            name: [page for page in self.prometheus.pages.get(name, ()) if page.at <= told_at]
            for name in ready
        }
        unseen = tuple(
            name for name, kept in pages.items()
            if not kept or not kept[-1].lines or self.now - kept[-1].truly_at > 120.0
        )  # fmt: skip
        answered = {name: self.prometheus.newest(name, told_at) for name in ready}
        gross = tuple(name for name, page in answered.items() if page is not None and page.gross)
        return ready, unseen, gross

    # People and machines

    def put(self, name: str, spec: Mapping[str, Any], *, uid: str | None = None) -> None:
        """`kubectl apply`; a uid makes it anew."""
        known = self.records.get(name)
        if known is None or uid is not None:
            ref = ResourceRef(namespace=NAMESPACE, name=name, uid=uid or f"uid-{name}")
            created = 0.0 if name == RIVAL else EPOCH + self.now
            self.records[name] = ResourceRecord(
                ref=ref, generation=1, created_seconds=created, deleting=False,
                spec=spec, status={},
            )  # fmt: skip
        elif known.spec != spec:
            self.records[name] = replace(known, spec=spec, generation=known.generation + 1)
        self.on_record()

    def delete(self, name: str) -> None:
        """`kubectl delete`."""
        if self.records.pop(name, None) is not None:
            self.on_record()

    def set_count(self, count: int, by: str) -> None:
        """`kubectl scale`, or a controller."""
        if self.world.desired != count:
            self.pass_to(self.now)
            self.world.scale(count)
            self.set_by[self.struck] = by
            self.edits[self.struck] = self.now

    def lose_pods(self, count: int) -> None:
        """A node is gone with some pods; their controller makes others."""
        self.pass_to(self.now)
        for pod in [p for p in self.world.pods if p.ready_at <= self.now][:count]:
            self.world.pods.remove(pod)
            self.world.service.remove(pod.name, self.now, drain=False)
        self.world.scale(self.world.desired)

    def restart_pod(self, index: int, slowness: float | None = None) -> None:
        """A container begins again: not ready for a while, its counters at zero.

        slowness: how many times as long its steps take from then on, None for as before. Not while
        it runs: an engine whose pace changed within a step would tell of times before its past.
        """
        self.pass_to(self.now)
        ready = [p for p in self.world.pods if p.ready_at <= self.now]
        if ready:
            pod = ready[index % len(ready)]
            self.world.service.remove(pod.name, self.now, drain=False)
            pod.restarts = getattr(pod, "restarts", 0) + 1
            pod.ready_at = self.now + 30.0
            pod.slowness = pod.slowness if slowness is None else slowness

    def begin_anew(self, pods: int, *, container_started: bool) -> None:
        """Engines begin again in place: counters at zero, what they had is lost, ready at once.

        container_started: whether Kubernetes counts it: a supervisor in the container may start one
        without.
        """
        self.pass_to(self.now)
        ready = [p for p in self.world.pods if p.ready_at <= self.now]
        for pod in ready[:pods]:
            self.world.service.remove(pod.name, self.now, drain=False)
            pod.restarts = getattr(pod, "restarts", 0) + container_started
        self.world._start_ready()

    def heal(self) -> None:
        """Pods that are slow begin again at their own pace."""
        ready = [p for p in self.world.pods if p.ready_at <= self.now]
        for place, pod in enumerate(ready):
            if pod.slowness != 1.0:
                self.restart_pod(place, 1.0)
                return self.heal()
        for pod in self.world.pods:
            pod.slowness = 1.0
        return None

    def settle_rollout(self) -> None:
        """What rolls out is out: all pods are of the newest template."""
        for pod in self.world.pods:
            pod.template = self.world.template
        self.world.rollout = False
        self.world.scale(self.world.desired)

    def room(self, count: int | None) -> None:
        """So many pods fit from now on; None for any number: what waited is placed."""
        self.world.room = count
        if count is None:
            for pod in self.world.pods:
                if pod.unschedulable:
                    pod.unschedulable = False
                    pod.ready_at = self.now + self.world.cold_start


def _scaler(name: str) -> SignalProblem:
    detail = f"{name} scales Deployment/{TARGET} as well"
    return SignalProblem(reason=Reason.SCALER_CONFLICT, detail=detail)
