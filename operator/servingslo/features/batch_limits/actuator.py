"""The batch limits of the engines, written into the pod template for one pod first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from servingslo.adapters.kubernetes.api.field_managers import arguments_set_by
from servingslo.adapters.kubernetes.pods.config_references import literal_variables
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import Switch, undone
from servingslo.controller.actuators.means import ActuatorRow, Means
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.errors import (
    ArgumentsNotUnderstoodError,
    ClusterError,
    NotFoundError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, ChangeOutcome, Setting
from servingslo.features.batch_limits.canary import (
    ADDED,
    AFTER,
    BEFORE,
    EDITED,
    HELD,
    NEW_PODS,
    TEMPLATE,
)
from servingslo.features.batch_limits.decision import CanaryAct, TemplateDecision, decided
from servingslo.features.batch_limits.engine_bound import REFUSED
from servingslo.features.batch_limits.pod_template import (
    BatchCanaries,
    CanaryTarget,
    container_at,
)
from servingslo.features.batch_limits.records import CanaryRecord, digest
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import (
    LIMIT_FIELDS,
    BatchingMode,
    InForce,
    LimitKind,
    ScaleTarget,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.decisions import BATCH_LIMITS
from servingslo.policy.knobs.in_flight.engines import QUEUE, SINCE, is_asked
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.arguments import parse_batch_arguments
from servingslo.runtimes.launch.command_line import expanded

# Steps of a canary that leave the template as it is.
_STEPS_OF_A_CANARY: Mapping[CanaryAct | None, Setting] = {
    CanaryAct.HOLD: Setting(name="paused", before=0, after=1),
    CanaryAct.COMPLETE: Setting(name="canary", before=1, after=0),
    CanaryAct.LEAVE: Setting(name="canary", before=1, after=0),
}


@dataclass(slots=True)
class EngineLimits:
    """Sets both limits of the engine's container, which rolls out new pods.

    templates, bounds: whether the administrator permits patches of pod templates, and the engines'
    own bound in them.
    """

    canaries: BatchCanaries
    templates: bool = True
    bounds: bool = True
    knob: str = BATCH_LIMITS
    repeats_at_once: bool = False
    _of_templates: Switch = field(init=False)

    def __post_init__(self) -> None:
        self._of_templates = Switch(self.templates)

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """The canary in progress, limits that were taken back, and why no pod can go first.

        None if limits are not changed at all. The view contains each pod's arguments.
        """
        if targets.batching.mode is not BatchingMode.AUTO:
            return None
        try:
            target = await self.canaries.read(ref.namespace, targets.target)
        except ClusterError as error:
            problem = SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail=str(error))
            return InForce(refused=problem)
        if target is None:
            return None
        standing = _standing(target, targets)
        if not self.templates:
            # A trial that is not taken back yet.
            return None if target.canary is None else standing
        template = _template(target, targets, view)
        values = {**standing.values, **template.values}
        return replace(standing, values=values, set_by=template.set_by)

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of the limits, or their way back; none if the engines are not known."""
        decision, batching = assignment.decision, decided(assignment.decision)
        starts = batching is not None and batching.canary is CanaryAct.START
        if decision.runtime.name is None and starts:
            return None
        return batch_limits_change(decision, assignment.targets.target)

    async def change(self, assignment: Assignment) -> bool | None:
        """Do what was decided about the canary, if it is as it was read."""
        decision, ref, targets = assignment.decision, assignment.ref, assignment.targets
        batching = decided(decision)
        target = await self.canaries.read(ref.namespace, targets.target)
        if target is None or batching is None or batching.canary is None:
            return False
        act = batching.canary
        if act is CanaryAct.START:
            since, runtime = int(decision.time_seconds), decision.runtime.name or ""
            return await self.canaries.start(target, ref, since, batching, runtime)
        planned = assignment.in_force[BATCH_LIMITS].values
        if target.canary is None or target.canary.since_seconds != planned.get(SINCE):
            raise WriteConflictError(f"{target.title} is not as it was read any more")
        if act is CanaryAct.HOLD:
            return await self.canaries.hold(target)
        if act is CanaryAct.TAKE_BACK:
            return await self.canaries.take_back(target, _asked(targets))
        if act is CanaryAct.COMPLETE and target.edited:
            raise WriteConflictError(f"{target.title} was changed meanwhile")
        return await self.canaries.complete(target)

    def not_made(self, decision: Decision, reason: Reason, _detail: str) -> Decision:
        """The decision with its count, but without new limits, and why."""
        batching = decided(decision)
        if batching is None:
            return decision
        return replace_knob(decision, self.knob, replace(batching, apply=False, reason=reason))

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Take back every canary whose resource is gone or no longer allows changes of limits.

        Limits that all pods of a Deployment or StatefulSet have stay: they proved no worse.
        """
        found: list[Change] = []
        acting = self._of_templates.acting(acting)
        for target in await self._of_templates.standing(self.canaries.standing):
            canary = target.canary
            if canary is not None and not self._is_wanted(target, canary, acting):
                ending = (
                    self.canaries.complete(target)
                    if target.edited
                    else self.canaries.take_back(target, "")
                )
                found += await undone(ending, _way_back(target, canary))
        return found

    def _is_wanted(self, target: CanaryTarget, canary: CanaryRecord, acting: Acting) -> bool:
        ref = ResourceRef(namespace=target.namespace, name=canary.owner, uid=canary.owner_uid)
        pools = acting(ref)
        return pools is None or any(
            targets.batching.mode is BatchingMode.AUTO
            and (targets.target.kind, targets.target.name) == (target.kind, target.name)
            and (not canary.queue or (self.bounds and is_asked(targets)))
            for targets in pools
        )


def _standing(target: CanaryTarget, targets: Targets) -> InForce:
    """The values stored in the object itself, as numbers."""
    canary, refused = target.canary, target.refused
    values: dict[str, int | None] = {}
    if canary is not None:
        values = {
            SINCE: canary.since_seconds,
            HELD: int(target.held),
            EDITED: int(target.edited),
            NEW_PODS: target.new_pods,
            **_named(BEFORE, canary.before),
            **_named(AFTER, canary.after),
            **{f"{ADDED}{name}": 1 for name in canary.flags_added},
        }
        if canary.queue:
            values |= {f"{BEFORE}{QUEUE}": canary.queue[0], f"{AFTER}{QUEUE}": canary.queue[1]}
    elif refused is not None:
        same = (refused.template, refused.wanted) == (target.template, _asked(targets))
        values = _named(REFUSED, refused.refused) if same else {}
        if same and refused.refused_queue is not None:
            values[f"{REFUSED}{QUEUE}"] = refused.refused_queue
    why = target.not_possible if canary is None else ""
    reason = Reason.BATCHING_CANARY_NOT_POSSIBLE
    problem = SignalProblem(reason=reason, detail=why) if why else None
    return InForce(values=values, refused=problem)


def _template(target: CanaryTarget, targets: Targets, view: WorkloadView) -> InForce:
    """The values of the template's command line, and who set them; nothing if they are unknown."""
    runtime = view.read_as.runtime
    if runtime is None:
        return InForce()
    profile, item = catalogue.profile(runtime), target.item
    try:
        index = container_at(item, targets.batching.container, runtime)
    except (ArgumentsNotUnderstoodError, NotFoundError):
        return InForce()
    entry = item["spec"]["template"]["spec"]["containers"][index]
    known = literal_variables(entry)
    command, args = (expanded(entry.get(key), known) for key in ("command", "args"))
    found = parse_batch_arguments(command, args, profile)
    values: dict[str, int | None] = {}
    if profile.queue_knob is not None:
        values[QUEUE] = found.max_num_queued_reqs
    if not found.change_refused:
        values |= {f"{TEMPLATE}{name}": getattr(found, name) for name in LIMIT_FIELDS}
    return InForce(values=values, set_by=arguments_set_by(item["metadata"], entry["name"]))


def _named(prefix: str, limits: Sequence[int]) -> dict[str, int | None]:
    named = zip(LIMIT_FIELDS, limits, strict=True)
    return {f"{prefix}{name}": value for name, value in named}


def _asked(targets: Targets) -> str:
    """Digest of the targets for which limits are found."""
    return digest([asdict(targets.batching), [asdict(one) for one in targets.objectives]])


def _way_back(target: CanaryTarget, canary: CanaryRecord) -> Change:
    """The change that ends a canary that is no longer requested."""
    edited = target.edited
    ending = TemplateDecision(
        reason=Reason.BATCHING_LEFT_TO_USER if edited else Reason.BATCHING_ROLLED_BACK,
        canary=CanaryAct.LEAVE if edited else CanaryAct.TAKE_BACK,
        current_max_num_seqs=canary.after[0],
        recommended_max_num_seqs=canary.before[0],
        current_max_num_batched_tokens=canary.after[1],
        recommended_max_num_batched_tokens=canary.before[1],
        flags_removed=() if edited else tuple(canary.flags_added),
        queue=() if edited else tuple(canary.queue[::-1]),
    )
    return _change((target.namespace, canary.owner), target.title, ending)


def batch_limits_change(decision: Decision, target: ScaleTarget) -> Change | None:
    """The change of batch limits that a decision orders; None if it orders none."""
    batching, cost = decided(decision), decision.cost
    if batching is None or not batching.apply:
        return None
    where = f"{target.kind}/{target.name}"
    change = _change((decision.namespace, decision.name), where, batching, decision.pool)
    if batching.canary in _STEPS_OF_A_CANARY:
        return change
    back = batching.canary is CanaryAct.TAKE_BACK
    return replace(
        change,
        replicas_saved=batching.replicas_saved,
        cost_saved_per_hour=None if cost is None or back else cost.saved_per_hour,
        currency="" if cost is None else cost.currency,
    )


def _change(
    resource: tuple[str, str], target: str, batching: TemplateDecision, pool: str = ""
) -> Change:
    """A step of a canary of batch limits. resource: namespace and name."""
    step = _STEPS_OF_A_CANARY.get(batching.canary)
    queue, removed = batching.queue, batching.flags_removed
    if queue and queue[1] is None:
        removed = (*removed, QUEUE)
    named = (*batching.limits, *(((QUEUE, queue[0], queue[1]),) if queue else ()))
    limits = tuple(Setting(name=name, before=now, after=new) for name, now, new in named)
    back = batching.canary is CanaryAct.TAKE_BACK
    return Change(
        namespace=resource[0],
        name=resource[1],
        target=target,
        knob=BATCH_LIMITS,
        settings=limits if step is None else (step,),
        reason=batching.reason,
        outcome=ChangeOutcome.ROLLED_BACK if back else ChangeOutcome.WRITTEN,
        flags_removed=removed if step is None else (),
        detail=batching.detail,
        pool=pool,
    )


def _actuator(means: Means) -> EngineLimits:
    return EngineLimits(
        BatchCanaries(means.client, namespaces=means.namespaces),
        templates=means.pod_templates,
        bounds=LimitKind.ENGINE_ARGUMENTS in means.limit_kinds,
    )


PART: ActuatorRow = _actuator
