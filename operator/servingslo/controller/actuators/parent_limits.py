"""Batch limits in an LLMInferenceService's template: what stands there, and the way back."""

from collections.abc import Sequence

from servingslo.adapters.kubernetes.api.field_managers import set_by
from servingslo.adapters.kubernetes.batch_limits.parent_lines import limits_of_line, line_refused
from servingslo.adapters.kubernetes.batch_limits.parent_templates import (
    PARENT_KIND,
    ParentRecord,
    ParentTemplate,
    ParentTemplates,
)
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import Switch, undone
from servingslo.controller.actuators.protocol import Acting
from servingslo.errors import ArgumentsNotUnderstoodError, ClusterError
from servingslo.explain.changes import Change, Setting, limits_change
from servingslo.policy.inputs import (
    LIMIT_FIELDS,
    BatchingMode,
    BatchingRollout,
    InForce,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.engine_limits.canary import TEMPLATE
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason

_ALL_AT_ONCE = SignalProblem(
    reason=Reason.BATCHING_CANARY_NOT_POSSIBLE,
    detail="KServe's controller gives all pods the template; set spec.batching.rollout: AllAtOnce",
)


async def standing(
    parents: ParentTemplates, ref: ResourceRef, targets: Targets, view: WorkloadView
) -> InForce:
    """The limits of the service's own line, and who set it; nothing if they are not known."""
    first = targets.batching.rollout is BatchingRollout.CANARY
    refused, runtime = _ALL_AT_ONCE if first else None, view.read_as.runtime
    if runtime is None:
        return InForce(refused=refused)
    try:
        parent = await parents.read(ref.namespace, targets.target)
        engine = await parents.engine(
            ref.namespace, view.target, targets.batching.container, runtime
        )
    except (ArgumentsNotUnderstoodError, ClusterError):
        # The view says why nothing can be changed.
        return InForce(refused=refused)
    found = parent.at(engine.name)
    if found is None or line_refused(found[1], engine, runtime):
        return InForce(refused=refused)
    limits = limits_of_line(found[1], engine, runtime)
    return InForce(
        values={f"{TEMPLATE}{name}": v for name, v in zip(LIMIT_FIELDS, limits, strict=True)},
        refused=refused,
        set_by=set_by(parent.item["metadata"], *parent.field.split(".")),
    )


async def undo(parents: ParentTemplates, acting: Acting, switch: Switch) -> Sequence[Change]:
    """Restore each line whose resource is gone or no longer allows changes of limits."""
    found: list[Change] = []
    for parent in await switch.standing(parents.standing):
        record = parent.record
        if record is not None and not _is_wanted(parent, record, switch.acting(acting)):
            found += await undone(parents.take_back(parent), _way_back(parent, record))
    return found


def _is_wanted(parent: ParentTemplate, record: ParentRecord, acting: Acting) -> bool:
    pools = acting(ResourceRef(namespace=parent.namespace, name=record.owner, uid=record.owner_uid))
    return pools is None or (
        parent.managed
        and any(
            targets.batching.mode is BatchingMode.AUTO
            and (targets.target.kind, targets.target.name, targets.target.part)
            == (PARENT_KIND, parent.name, parent.part)
            for targets in pools
        )
    )


def _way_back(parent: ParentTemplate, record: ParentRecord) -> Change:
    resource = parent.namespace, record.owner
    if parent.edited:
        kept = (Setting(name="recorded", before=1, after=0),)
        return limits_change(resource, parent.title, kept, Reason.BATCHING_LEFT_TO_USER)
    rows = zip(LIMIT_FIELDS, record.after, record.before, strict=True)
    settings = tuple(Setting(name=n, before=b, after=a) for n, b, a in rows)
    return limits_change(
        resource,
        parent.title,
        settings,
        Reason.BATCHING_ROLLED_BACK,
        flags_removed=tuple(one.name for one in settings if one.after is None),
    )
