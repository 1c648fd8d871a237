"""Limits of dynamic batches, set on each pod's server while it runs."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from servingslo.adapters.engines.channel import EngineChannel, EngineOptions
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import Switch
from servingslo.controller.actuators.means import ActuatorRow, Means
from servingslo.controller.actuators.protocol import Acting, Assignment, PartlyWrittenError
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    NotFoundError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, ChangeOutcome, Setting, not_written
from servingslo.explain.format import joined
from servingslo.features.dynamic_batches.model_repository import ModelRepository, owner_of
from servingslo.features.dynamic_batches.servers import (
    DYNAMIC_BATCHING,
    BatcherDecision,
    BatcherLimits,
    Owner,
    PodBatcher,
    batcher_of,
    values_of,
)
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import BatchingMode, InForce, ScaleTarget, SignalProblem, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import profile

# Name at most this many pods that have one change together.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """The pods that have a resource's limits, their model and their target.

    found_by: another resource of that target that found them, before this one was first reconciled.
    """

    target: ScaleTarget
    model: str
    port: int
    pods: Mapping[str, BatcherLimits] = field(default_factory=dict)
    found_by: ResourceRef | None = None


# A resource and the target of one of its pools.
_Key = tuple[ResourceRef, ScaleTarget]


@dataclass(slots=True)
class DynamicBatching:
    """Reads limits from every Ready pod at each tick, and sets the limits that were decided.

    models: None if the administrator enabled no access to engines. writes: whether the
    administrator permits changes of batch limits.
    Limits that were set before a restart are found on the pods themselves when a resource is
    reconciled: its own, and those left by a resource that is gone.
    """

    models: ModelRepository | None
    writes: bool
    knob: str = DYNAMIC_BATCHING
    repeats_at_once: bool = False
    _set: dict[_Key, _Set] = field(default_factory=dict)

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """The limits of each pod; None if its servers cannot be asked at all."""
        runtime = view.read_as.runtime
        port = None if runtime is None else profile(runtime).model_repository_port
        if self.models is None or port is None:
            return None
        model = targets.model
        if model is None:
            detail = "spec.model is not stated, so that no model's limits are read or set"
            return InForce(refused=SignalProblem(reason=Reason.LIMITS_UNKNOWN, detail=detail))
        own = _Set(target=targets.target, model=model, port=port)
        pods = [pod.name for pod in view.pods if pod.ready and not pod.deleting]
        read = await asyncio.gather(*(_tried(self.models, ref, pod, port, model) for pod in pods))
        found = {
            pod: one for pod, one in zip(pods, read, strict=True) if isinstance(one, PodBatcher)
        }
        errors = [one for one in read if isinstance(one, ClusterError)]
        self._remember(ref, own, view, found)
        self._remember_others(ref, own, found)
        problem = _problem(errors[0]) if errors else None
        return InForce(values=values_of(found), refused=problem)

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of the limits on the pods that are due."""
        decision, target = assignment.decision, assignment.targets.target
        batcher = batcher_of(decision)
        if batcher is None or not batcher.pods:
            return None
        resource = (decision.namespace, decision.name)
        return _change(resource, f"{target.kind}/{target.name}", batcher, decision.pool)

    async def change(self, assignment: Assignment) -> bool | None:
        """Set the limits on each of these pods; if one refuses, the others still get them."""
        ref, targets = assignment.ref, assignment.targets
        batcher = batcher_of(assignment.decision)
        runtime = assignment.decision.runtime.name
        port = None if runtime is None else profile(runtime).model_repository_port
        if not self.writes or batcher is None or self.models is None:
            return False
        if targets.model is None or port is None:
            return False
        limits = None if batcher.puts_back else batcher.after
        own = _Set(target=targets.target, model=targets.model, port=port)
        if limits is not None:
            known = self._set.get((ref, own.target), own).pods
            pods = {**known, **dict.fromkeys(batcher.pods, limits)}
            self._set[ref, own.target] = replace(own, pods=pods)
        written, errors = await _set_all(self.models, ref, own, batcher.pods, limits)
        if not errors:
            return bool(written)
        first = next(iter(errors.values()))
        if not written:
            raise first
        resource, target = (ref.namespace, ref.name), f"{own.target.kind}/{own.target.name}"
        parts = (
            _change(resource, target, replace(batcher, pods=tuple(pods)), assignment.decision.pool)
            for pods in (written, errors)
        )
        raise PartlyWrittenError(first, *parts) from first

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision with its count and unchanged limits, and why."""
        batcher = batcher_of(decision)
        if batcher is None:
            return decision
        held = replace(batcher, pods=(), reason=reason, detail=detail)
        return replace_knob(decision, self.knob, held)

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Restore the former limits on all pods for which ours are no longer requested."""
        undone, acting = list[Change](), Switch(self.writes).acting(acting)
        for (ref, target), standing in list(self._set.items()):
            if _is_wanted(acting(ref), standing) or self.models is None:
                continue
            pods = tuple(sorted(standing.pods))
            told_of = standing.found_by or ref
            back = BatcherDecision(
                reason=Reason.BATCHING_ROLLED_BACK,
                before=standing.pods[pods[0]] if pods else None,
                puts_back=True,
            )
            change = partial(
                _change,
                (told_of.namespace, told_of.name),
                f"{standing.target.kind}/{standing.target.name}",
            )
            written, errors = await _set_all(self.models, ref, standing, pods, None)
            # A pod that is gone or was replaced has lost them with its memory.
            left = {
                pod: error
                for pod, error in errors.items()
                if not isinstance(error, NotFoundError | WriteConflictError)
            }
            if written:
                undone.append(change(replace(back, pods=tuple(written))))
            if left:
                kept = {pod: standing.pods[pod] for pod in left}
                self._set[ref, target] = replace(standing, pods=kept)
                first = next(iter(left.values()))
                answered = not isinstance(first, ClusterUnavailableError)
                not_back = change(replace(back, pods=tuple(left)))
                undone.append(
                    not_written(not_back, Reason.WRITE_FAILED, str(first), answered=answered)
                )
                continue
            del self._set[ref, target]
        return undone

    def _remember(
        self, ref: ResourceRef, own: _Set, view: WorkloadView, found: Mapping[str, PodBatcher]
    ) -> None:
        """Remember which pods have our limits; a pod that is not read or ready keeps its entry."""
        known = self._set.get((ref, own.target))
        if known is not None and known.model != own.model:
            # The limits of another model are put back first.
            return
        unread = {pod.name for pod in view.pods if not pod.deleting} - found.keys()
        before = {} if known is None else known.pods
        pods = {pod: limits for pod, limits in before.items() if pod in unread}
        pods |= {pod: one.limits for pod, one in found.items() if one.owner is Owner.OURS}
        if pods or known is not None:
            self._set[ref, own.target] = replace(own, pods=pods)

    def _remember_others(
        self, ref: ResourceRef, own: _Set, found: Mapping[str, PodBatcher]
    ) -> None:
        """Remember limits of another resource, so that they are put back if it is gone."""
        for pod, one in found.items():
            owner = owner_of(one, ref.namespace) if one.owner is Owner.ANOTHER else None
            known = None if owner is None else self._set.get((owner, own.target))
            if owner is None or (known is not None and known.found_by != ref):
                continue
            pods = {**({} if known is None else known.pods), pod: one.limits}
            self._set[owner, own.target] = replace(own, pods=pods, found_by=ref)


async def _tried(
    models: ModelRepository, ref: ResourceRef, pod: str, port: int, model: str
) -> PodBatcher | ClusterError:
    try:
        return await models.read(ref, pod, port, model)
    except ClusterError as error:
        return error


async def _set_all(
    models: ModelRepository,
    ref: ResourceRef,
    own: _Set,
    pods: Sequence[str],
    limits: BatcherLimits | None,
) -> tuple[list[str], dict[str, ClusterError]]:
    """Set or restore the limits; return the pods that were written, and the error of each other."""
    written, errors = [], {}
    for pod in pods:
        try:
            if await models.set(ref, pod, own.port, own.model, limits):
                written.append(pod)
        except ClusterError as error:
            errors[pod] = error
    return written, errors


def _problem(error: ClusterError) -> SignalProblem:
    refused = isinstance(error, PermissionDeniedError)
    reason = Reason.NOT_PERMITTED if refused else Reason.LIMITS_UNKNOWN
    return SignalProblem(reason=reason, detail=str(error))


def _is_wanted(pools: Sequence[Targets] | None, standing: _Set) -> bool:
    return pools is None or any(
        targets.batching.mode is BatchingMode.AUTO
        and (targets.target, targets.model) == (standing.target, standing.model)
        for targets in pools
    )


def _actuator(means: Means) -> DynamicBatching:
    """The actuator, with access to the servers that the options name."""
    allowed, inventory = means.option(EngineOptions), means.inventory
    models = None
    if allowed is not None and inventory is not None:
        models = ModelRepository(EngineChannel(allowed), means.client, inventory.pods.get)
    return DynamicBatching(models, writes=means.servers)


def _change(
    resource: tuple[str, str], target: str, batcher: BatcherDecision, pool: str = ""
) -> Change:
    """Set limits on the decided pods, or restore those from before ours.

    resource: namespace and name.
    """
    names, pods, back = BatcherLimits._fields, batcher.pods, batcher.puts_back
    known = len(names) * (None,)
    settings = zip(
        names, batcher.before or known, (not back and batcher.after) or known, strict=True
    )
    named = ", ".join(pods[:_MOST_NAMED]) + (", …" if len(pods) > _MOST_NAMED else "")
    rolled_back = batcher.reason is Reason.BATCHING_ROLLED_BACK
    return Change(
        namespace=resource[0],
        name=resource[1],
        target=target,
        knob=DYNAMIC_BATCHING,
        settings=(
            *(Setting(name=name, before=old, after=new) for name, old, new in settings),
            Setting(name="pods", before=len(pods), after=len(pods)),
        ),
        reason=batcher.reason,
        outcome=ChangeOutcome.ROLLED_BACK if rolled_back else ChangeOutcome.WRITTEN,
        detail=joined((f"on {named}", batcher.detail), ": "),
        pool=pool,
    )


PART: ActuatorRow = _actuator
