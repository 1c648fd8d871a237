"""The bound on requests in flight at a gateway, written into the object that holds it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.gateways.destination_rules import DestinationHosts
from servingslo.adapters.kubernetes.gateways.limits import (
    BACKEND_TRAFFIC_POLICY,
    DESTINATION_RULE,
    LimitForm,
    LimitHolder,
    LimitHolders,
    LimitOwner,
    limit_holders,
    taken,
)
from servingslo.adapters.kubernetes.gateways.routes import GatewayRoutes, names_of_targets
from servingslo.adapters.kubernetes.gateways.services import LimitReach
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import (
    PartlyUndoneError,
    Switch,
    forbidden,
    refusal,
)
from servingslo.controller.actuators.means import Means
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.errors import (
    ClusterError,
    LimitNotEnforceableError,
    WriteConflictError,
)
from servingslo.explain.changes import (
    Change,
    Knob,
    gateway_limit_change,
    limit_change,
)
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import (
    AdmissionMode,
    InForce,
    LimitKind,
    LimitObject,
    SignalProblem,
    Targets,
)
from servingslo.policy.knobs.in_flight.gateway import FORMER, LIMIT
from servingslo.policy.ports import WorkloadView
from servingslo.policy.routes import ClassTargets
from servingslo.reasons import Reason

# Each kind of object that holds a gateway's bound, and how to find the bound's resource.
_LIMITS: tuple[tuple[LimitForm, Callable[[KubeClient], LimitReach]], ...] = (
    (BACKEND_TRAFFIC_POLICY, GatewayRoutes),
    (DESTINATION_RULE, DestinationHosts),
)


@dataclass(slots=True)
class GatewayLimits:
    """Writes the bound of each proxy if the administrator and the object's owner allow it.

    objects: by kind, and what finds out for which resource a bound in one of them is. kinds: those
    that the administrator lists. A tenant could make the same write themselves: it is in their own
    namespace, in an object that its owner labelled for it, and only in one field.
    """

    objects: Mapping[LimitKind, tuple[LimitHolders, LimitReach]]
    kinds: frozenset[str]
    knob: str = Knob.GATEWAY_LIMITS
    repeats_at_once: bool = False
    _switches: Mapping[LimitKind, Switch] = field(init=False)

    def __post_init__(self) -> None:
        self._switches = {kind: Switch(kind in self.kinds) for kind in self.objects}

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """The current bound, and the former one if the current is ours; or why none may be written.

        None if no bound is requested.
        """
        if targets.admission_mode is not AdmissionMode.AUTO or targets.admission_via is None:
            return None
        via = targets.admission_via
        if via.kind is LimitKind.ENGINE_ARGUMENTS:
            return InForce(refused=self._not_listed(via))
        elsewhere = targets.elsewhere
        fallback = None if elsewhere is None else elsewhere.service
        return await self.look(ref, via, view, fallback=fallback)

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of the bound."""
        return gateway_limit_change(assignment.decision)

    async def change(self, assignment: Assignment) -> bool | None:
        """Write the bound, or restore the former one, if the object is as it was when planned."""
        limit, via = assignment.decision.gateway_limit, assignment.targets.admission_via
        if limit is None or via is None:
            return False
        planned = assignment.in_force[self.knob].values
        after = None if limit.puts_back else limit.after
        return await self.set(assignment.ref, via, planned, after, puts_back=bool(limit.puts_back))

    async def set(
        self,
        ref: ResourceRef,
        via: LimitObject,
        planned: Mapping[str, int | None],
        after: int | None,
        *,
        puts_back: bool,
    ) -> bool:
        """Write the bound of one object, or restore its former one. planned: as it was read.

        Raises: WriteConflictError if the object changed since then; ClusterError otherwise.
        """
        holders, _ = self.objects[via.kind]
        policy = await holders.read(ref.namespace, via.name)
        standing = _standing(ref, policy)
        if (standing.refused is not None and not puts_back) or standing.values != planned:
            raise WriteConflictError(f"{via.kind}/{via.name} is not as it was read any more")
        if puts_back:
            await holders.put_back(policy)
            return True
        if after is None or after == policy.limit:
            return False
        await holders.write(policy, taken(policy, ref.name, ref.uid, after))
        return True

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision with its count and an unchanged bound, and why."""
        limit = decision.gateway_limit
        if limit is None:
            return decision
        held = replace(limit, reason=reason, after=limit.before, change_reason=None, detail=detail)
        return replace_knob(decision, self.knob, held)

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Restore the former bound for each resource that is gone or no longer requests one.

        A kind that cannot be listed keeps none from the others.
        """
        found, errors = list[Change](), list[ClusterError]()
        for kind, (holders, _) in self.objects.items():
            try:
                found += await self._switches[kind].undo(holders, acting, _is_wanted, _way_back)
            except ClusterError as error:
                errors.append(error)
        if errors:
            raise PartlyUndoneError(errors, found) if found else errors[0]
        return found

    def _not_listed(self, via: LimitObject) -> SignalProblem | None:
        if via.kind in self.kinds:
            return None
        detail = f"the administrator does not list {via.kind}"
        return SignalProblem(reason=Reason.NOT_PERMITTED, detail=detail)

    async def look(
        self,
        ref: ResourceRef,
        via: LimitObject,
        view: WorkloadView,
        *,
        route: str = "",
        fallback: str | None = None,
    ) -> InForce:
        """The values of one object, and why none may be written.

        route: the only HTTPRoute that the bound may be for; '' for any to this workload. fallback:
        the Service of a fallback in that route.
        """
        standing, off = InForce(), self._not_listed(via)
        holders, reach = self.objects[via.kind]
        try:
            policy = await holders.read(ref.namespace, via.name)
            standing = _standing(ref, policy)
            if standing.refused is None and off is None:
                others = await holders.in_namespace(ref.namespace)
                pods = [pod.name for pod in view.pods]
                await reach.check(policy, others, pods, fallback)
                if route and route not in names_of_targets(policy):
                    raise LimitNotEnforceableError(f"it is not for HTTPRoute/{route}")
        except ClusterError as error:
            problem = refusal(error, Reason.LIMIT_NOT_ENFORCEABLE)
            standing = replace(standing, refused=problem)
        if off is None:
            return standing
        unread = "" if standing.values else f"; what stands in {via.name} cannot be read"
        return replace(standing, refused=replace(off, detail=f"{off.detail}{unread}"))


def gateway_limits(means: Means) -> GatewayLimits:
    """The actuator of every kind of object."""
    return GatewayLimits(
        {
            form.kind: (
                limit_holders(means.client, form, namespaces=means.namespaces),
                reach(means.client),
            )
            for form, reach in _LIMITS
        },
        means.limit_kinds,
    )


def _standing(ref: ResourceRef, policy: LimitHolder) -> InForce:
    """The values in the object itself: its bound, and whether the operator may change it.

    The former bound is included if the current one is this resource's.
    """
    values, owner = {LIMIT: policy.limit}, policy.owner
    if owner is not None and policy.is_ours and owner.name == ref.name:
        values[FORMER] = owner.former
    other = _set_by_another(ref, policy)
    problem = forbidden(policy, Reason.LIMIT_RELEASED, Reason.LIMIT_SET_BY_ANOTHER, other)
    return InForce(values=values, refused=problem)


def _set_by_another(ref: ResourceRef, policy: LimitHolder) -> str:
    owner, who = policy.owner, policy.manager or "somebody"
    if owner is None and policy.applied_by is not None:
        return f"{policy.applied_by} applies {policy.limit} there; it is left alone"
    if owner is not None and not policy.is_ours:
        return f"{who} set {policy.limit} in place of {owner.limit}; it is left alone"
    if owner is not None and owner.name != ref.name:
        return f"ServingSLO {owner.name} sets it already"
    return ""


def _is_wanted(policy: LimitHolder, _: LimitOwner, pools: Sequence[Targets]) -> bool:
    vias = (
        via
        for targets in pools
        if targets.admission_mode is AdmissionMode.AUTO
        for via in (targets.admission_via, *map(class_object, targets.classes))
    )
    return any(
        via is not None and (via.kind, via.name) == (policy.kind, policy.name) for via in vias
    )


def _way_back(policy: LimitHolder, owner: LimitOwner) -> Change:
    limits = policy.limit, owner.former if policy.is_ours else policy.limit
    return limit_change(policy.namespace, owner.name, policy.title, limits, Reason.LIMIT_PUT_BACK)


def class_object(one: ClassTargets) -> LimitObject:
    """The object that holds the bound of a class."""
    return LimitObject(kind=LimitKind.BACKEND_TRAFFIC_POLICY, name=one.policy)
