"""Takes pods out of the traffic and puts their engines to sleep, and wakes them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.engines.channel import EngineChannel
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.pods.records import PodRecord
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import Switch, undone
from servingslo.controller.actuators.means import ActuatorRow, Means
from servingslo.controller.actuators.protocol import Acting, Assignment, PartlyWrittenError
from servingslo.errors import (
    EngineRefusedError,
    NotFoundError,
    ServingSLOError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, ChangeOutcome, Setting
from servingslo.features.warm_replicas.call import (
    ON_CALL,
    SERVES,
    TARGETS,
    WARM_REPLICAS,
    WarmDecision,
    warm_of,
)
from servingslo.features.warm_replicas.pods import (
    LABEL,
    NOT_SERVING,
    SERVING,
    SleepingPods,
    on_call,
    sleep_api,
)
from servingslo.features.warm_replicas.run import WarmOptions
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import InForce, SignalProblem, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason

# After an engine refused, none of that resource is asked: it was started without sleep mode.
REFUSED_SECONDS = 600.0
_OFF = "the administrator lets no engine be put to sleep"
_SELECTED = f"its selector has the label {LABEL}, so that a pod without it would be replaced"


@dataclass(slots=True)
class WarmReplicas:
    """Reads from the pods' labels who takes requests, and carries out what was decided.

    pods: None without access to engines. sleeps: whether they may be put to sleep; else all wake.
    """

    inventory: Inventory | None
    pods: SleepingPods | None
    sleeps: bool
    knob: str = WARM_REPLICAS
    repeats_at_once: bool = False
    _refused: dict[str, tuple[float, str]] = field(default_factory=dict)

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """Which pods take no requests, and why none may be put to sleep, if so."""
        if TARGETS.of(targets.features) is None or self.inventory is None:
            return None
        records = [self.inventory.pods.get(ref.namespace, pod.name) for pod in view.pods]
        values = {
            one.name: SERVES if one.labels[LABEL] == SERVING else ON_CALL
            for one in records
            if one is not None and one.labels.get(LABEL) in (SERVING, NOT_SERVING)
        }
        # A pod that has gone since it was read says nothing of the others.
        unlabelled = [
            one.name
            for one in records
            if one is not None and not one.deleting and one.name not in values
        ]
        deployment = self.inventory.deployments.get(ref.namespace, view.target.name)
        selected = deployment is None or any(one.key == LABEL for one in deployment.selector)
        refused = self._why_not(ref, view, unlabelled, selected=selected)
        return InForce(values=values, refused=refused)

    def _why_not(
        self, ref: ResourceRef, view: WorkloadView, unlabelled: Sequence[str], *, selected: bool
    ) -> SignalProblem | None:
        """Why no engine of the target may be put to sleep."""
        runtime = view.read_as.runtime
        until, said = self._refused.get(ref.uid, (0.0, ""))
        reason, detail = Reason.NOT_PERMITTED, ""
        if self.pods is None or not self.sleeps:
            detail = _OFF
        elif view.target.kind != "Deployment" or (runtime and sleep_api(runtime) is None):
            # Without metrics no runtime is known: that alone wakes nobody.
            what = runtime if runtime and view.target.kind == "Deployment" else view.target.kind
            reason, detail = Reason.KIND_NOT_SUPPORTED, f"{what}: of Deployments, engines of vLLM"
        elif unlabelled:
            detail = f'{unlabelled[0]} has no label {LABEL}: "{SERVING}"'
        elif selected:
            detail = f"{view.target.name}: {_SELECTED}"
        elif SystemClock.elapsed_seconds() < until:
            detail = said
        return SignalProblem(reason=reason, detail=detail) if detail else None

    def wanted(self, assignment: Assignment) -> Change | None:
        """What is done to the decided pods."""
        decided = warm_of(assignment.decision.knobs)
        if decided is None or not decided.orders or self.pods is None:
            return None
        target = assignment.targets.target
        resource = (assignment.decision.namespace, assignment.decision.name)
        return _change(resource, f"{target.kind}/{target.name}", decided, assignment.decision.pool)

    async def change(self, assignment: Assignment) -> bool | None:
        """Wake, put to sleep and take out; if one pod refuses, the others are still asked."""
        decided, ref = warm_of(assignment.decision.knobs), assignment.ref
        runtime = assignment.decision.runtime.name or ""
        if decided is None or self.pods is None:
            return False
        asked = {
            **{pod: self._wake(ref, pod) for pod in decided.wakes},
            **{pod: self.pods.put_to_sleep(ref, pod) for pod in decided.sleeps},
            **{pod: self.pods.take_out(ref, pod, runtime) for pod in decided.takes_out},
        }
        ended = await asyncio.gather(*asked.values(), return_exceptions=True)
        errors = {pod: one for pod, one in zip(asked, ended, strict=True) if one}
        for error in errors.values():
            if isinstance(error, EngineRefusedError):
                until = SystemClock.elapsed_seconds() + REFUSED_SECONDS
                self._refused[ref.uid] = until, str(error)
        if not errors:
            return True
        first = next(iter(errors.values()))
        done = asked.keys() - errors.keys()
        if not done or not isinstance(first, ServingSLOError):
            raise first
        target = assignment.targets.target
        resource, named = (ref.namespace, ref.name), f"{target.kind}/{target.name}"
        parts = (
            _change(resource, named, decided.of_pods(pods), assignment.decision.pool)
            for pods in (done, errors.keys())
        )
        raise PartlyWrittenError(first, *parts) from first

    async def _wake(self, ref: ResourceRef, pod: str) -> None:
        """Wake a pod that this resource took out. Raises: ClusterError."""
        if self.pods is None:
            return
        item = await self.pods.read(ref.namespace, pod)
        found = on_call(item)
        if found is None or found.owner != ref:
            raise WriteConflictError(f"{pod}: another one took it out of the traffic")
        await self.pods.wake(item, found)

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision with its count and pods as they are, and why."""
        decided = warm_of(decision.knobs)
        if decided is None:
            return decision
        held = replace(decided.hold(), reason=reason, detail=detail)
        return replace_knob(decision, self.knob, held)

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Wake the pods of resources that are gone or no longer ask for it."""
        changes, acting = list[Change](), Switch(self.sleeps).acting(acting)
        if self.inventory is None or self.pods is None:
            return ()
        caches = self.inventory.pods.caches.values()
        for record in [one for cache in caches for one in list(cache.items.values())]:
            if record.labels.get(LABEL) != NOT_SERVING or record.deleting or record.finished:
                continue
            try:
                item = await self.pods.read(record.namespace, record.name)
            except NotFoundError:
                continue
            found = on_call(item)
            pools = () if found is None else acting(found.owner)
            if found is None or pools is None or any(self._keeps(one, record) for one in pools):
                continue
            resource = (record.namespace, found.owner.name)
            back = WarmDecision(
                reason=Reason.ENGINES_WOKEN, awake=0, wake_seconds=0.0, wakes=(record.name,)
            )
            change = replace(
                _change(resource, f"Pod/{record.name}", back), outcome=ChangeOutcome.ROLLED_BACK
            )
            changes += await undone(self.pods.wake(item, found), change)
        return changes

    def _keeps(self, targets: Targets, record: PodRecord) -> bool:
        """Whether a pod belongs to a target whose pods may sleep."""
        if TARGETS.of(targets.features) is None or self.inventory is None:
            return False
        target = self.inventory.deployments.get(record.namespace, targets.target.name)
        if target is None or targets.target.kind != "Deployment":
            # It stands for a Deployment, or cannot be read: its own knob wakes its pods.
            return True
        pods = self.inventory.workload_pods(
            record.namespace, target_uid=target.uid, selector=target.selector, strict=True
        )
        return any(pod.uid == record.uid for pod in pods)


def _change(
    resource: tuple[str, str], target: str, decided: WarmDecision, pool: str = ""
) -> Change:
    """What is done to pods. resource: namespace and name."""
    done = (("wake", decided.wakes), ("sleep", decided.sleeps), ("take_out", decided.takes_out))
    named = "; ".join(f"{what} {', '.join(pods)}" for what, pods in done if pods)
    return Change(
        namespace=resource[0],
        name=resource[1],
        target=target,
        knob=WARM_REPLICAS,
        settings=tuple(
            Setting(name=what, before=len(pods), after=len(pods)) for what, pods in done if pods
        ),
        reason=decided.reason,
        detail=named,
        pool=pool,
    )


def _actuator(means: Means) -> WarmReplicas:
    """The actuator, with access to the engines that the options name."""
    allowed, pods = means.option(WarmOptions), None
    if allowed is not None:
        pods = SleepingPods(means.client, EngineChannel(allowed.engines), allowed.port)
    return WarmReplicas(means.inventory, pods, allowed is not None and allowed.sleeps)


PART: ActuatorRow = _actuator
