"""Between a plan and its write: check that the plan's resource and target are still the same.

A watch reports changes late, and a tick may wait seconds for Prometheus. So the operator reads both
again, from the API server itself, at the last moment before a write.
"""

from dataclasses import dataclass

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.controller.adapters import Adapters
from servingslo.controller.place import place_of
from servingslo.controller.registry import Registry, Resource
from servingslo.errors import NotFoundError
from servingslo.policy.inputs import Actuation, Limits, SignalProblem, Targets
from servingslo.policy.replicas.ownership import acting_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Result of a last look. changed: why the plan is void, '' while its resource is the same.

    owner: the other client that sets the count meanwhile, None for none.
    """

    changed: str = ""
    owner: SignalProblem | None = None


async def last_look(
    adapters: Adapters, registry: Registry, resource: Resource, targets: Targets, limits: Limits
) -> Standing:
    """Changes of a resource and of the target to be written since the plan.

    The resource as read is remembered in the registry, which wakes the loop for it. Raises:
    ClusterError if the API server gives no answer: then nothing may be written.
    """
    ref = resource.record.ref
    if acting_limit(targets, limits) is not None:
        return Standing(changed="acting is switched off")
    owner = registry.owner_conflict(resource)
    if owner is None and targets.actuation is Actuation.SCALE:
        scalers = await adapters.workloads.other_scalers(ref.namespace, targets.target)
        owner = next(iter(scalers), None)
    # The resource is read last, so that its owner's changes count up to the write itself.
    try:
        now = await adapters.resources.read(ref)
    except NotFoundError:
        registry.remove((ref.namespace, ref.name), ref.uid)
        return Standing(changed="it was deleted")
    if now.ref.uid != ref.uid:
        registry.upsert(now)
        return Standing(changed="it was deleted and made anew")
    if now.deleting:
        registry.remove((ref.namespace, ref.name), ref.uid)
        return Standing(changed="it is being deleted")
    changed = _changes(resource, now)
    if changed:
        registry.upsert(now)
        return Standing(changed=changed)
    return Standing(owner=owner)


def _changes(resource: Resource, now: ResourceRecord) -> str:
    """What is new of a resource that is still there, in words; '' for nothing."""
    generation = resource.record.generation
    if place_of(now.status) != resource.place:
        return "it was handed over"
    return (
        "" if now.generation == generation else f"generation {generation} is {now.generation} now"
    )
