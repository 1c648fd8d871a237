"""The weight of a fallback in the workload's HTTPRoute."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servingslo.adapters.kubernetes.gateways.services import GatewayServices, refuse
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import Switch, forbidden, refusal
from servingslo.controller.actuators.means import ActuatorRow, Means
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.errors import (
    ClusterError,
    LimitNotEnforceableError,
    WriteConflictError,
)
from servingslo.explain.changes import Change, Setting
from servingslo.explain.format import joined
from servingslo.features.degradation.routes import (
    MOST_WEIGHT,
    WeightedRoute,
    WeightedRoutes,
    WeightsOwner,
    weighted_routes,
    weights_of,
)
from servingslo.features.degradation.run import WeightsMoved
from servingslo.features.degradation.share import (
    FORMER,
    ROUTE_WEIGHTS,
    SHARE,
    TARGETS,
    THOUSANDTHS,
    degradation_of,
)
from servingslo.policy.decision import Decision, replace_knob
from servingslo.policy.inputs import InForce, SignalProblem, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.policy.routes import BACKEND, RULE
from servingslo.reasons import Reason

_NOT_ENABLED = "the administrator does not enable degradation"


@dataclass(slots=True)
class RouteWeights:
    """Moves weight to the fallback if the administrator and the route's owner allow it.

    A tenant could make the same write themselves: it is in their own namespace, in a route that its
    owner labelled for it, only in the weights of backends that are there already.
    """

    routes: WeightedRoutes
    services: GatewayServices
    enabled: bool
    knob: str = ROUTE_WEIGHTS
    repeats_at_once: bool = False
    _switch: Switch = field(init=False)

    def __post_init__(self) -> None:
        self._switch = Switch(self.enabled)

    async def in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> InForce | None:
        """The fallback's present share and place in the route, or why it may not be changed.

        None if no degradation is asked for. Without a share in the values, it is not known.
        """
        asked = TARGETS.of(targets.features)
        if asked is None:
            return None
        standing = InForce()
        try:
            route = await self.routes.read(ref.namespace, asked.route)
            standing = standing_weights(ref, route, asked.fallback)
            if standing.refused is None and self.enabled:
                await self._check(route, standing.values, [pod.name for pod in view.pods])
        except ClusterError as error:
            standing = replace(standing, refused=refusal(error, Reason.ROUTE_NOT_USABLE))
        if self.enabled:
            return standing
        unread = "" if SHARE in standing.values else f"; HTTPRoute/{asked.route} cannot be read"
        problem = SignalProblem(reason=Reason.NOT_PERMITTED, detail=_NOT_ENABLED + unread)
        return replace(standing, refused=problem)

    def wanted(self, assignment: Assignment) -> Change | None:
        """The change of the share."""
        return _change(assignment.decision)

    async def change(self, assignment: Assignment) -> bool | None:
        """Write the weights, or restore the owner's, if the route is as it was when planned."""
        decided = degradation_of(assignment.decision.knobs)
        asked = TARGETS.of(assignment.targets.features)
        if decided is None or asked is None:
            return False
        ref = assignment.ref
        route = await self.routes.read(ref.namespace, asked.route)
        standing, planned = (
            standing_weights(ref, route, asked.fallback),
            assignment.in_force[self.knob],
        )
        forbidden = standing.refused is not None and not decided.puts_back
        if forbidden or standing.values != planned.values:
            raise WriteConflictError(f"{route.title} is not as it was read any more")
        if decided.puts_back:
            await self.routes.put_back(route)
            return True
        rule, backend = standing.values.get(RULE), standing.values.get(BACKEND)
        if rule is None or backend is None:
            return False
        former = route.weights(rule) if route.owner is None else route.owner.former
        await self.routes.write(
            route,
            WeightsOwner(
                name=ref.name,
                uid=ref.uid,
                rule=rule,
                weights=weights_of(former, backend, round(decided.after * THOUSANDTHS)),
                former=former,
            ),
        )
        return True

    def not_made(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        """The decision with its count and an unchanged share, and why."""
        decided = degradation_of(decision.knobs)
        if decided is None:
            return decision
        return replace_knob(
            decision, self.knob, replace(decided.hold(), reason=reason, detail=detail)
        )

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Restore the weights for each resource that is gone or no longer asks for degradation."""
        return await self._switch.undo(self.routes, acting, _is_wanted, _way_back)

    async def _check(
        self, route: WeightedRoute, values: Mapping[str, int | None], pods: Collection[str]
    ) -> None:
        """Check that all backends but the fallback lead to this workload alone, and that it serves.

        Raises: LimitNotEnforceableError if they do not; ClusterError if that cannot be determined.
        """
        for place, backend in enumerate(route.backends(values[RULE] or 0)):
            if place == values[BACKEND]:
                await self.services.check_serves(route.namespace, backend["name"])
            else:
                await self.services.check(route.namespace, backend["name"], pods)


def standing_weights(ref: ResourceRef, route: WeightedRoute, fallback: str) -> InForce:
    """The fallback's share and place in the route itself, and why weights may not be changed.

    The operator's own weights are seen in any form of route, so that they can be put back.
    """
    owner, values = route.owner, {SHARE: 0}
    if owner is not None and route.is_ours and owner.name == ref.name:
        values = {SHARE: _share(owner.weights, owner.former), FORMER: 1}
    other = _set_by_another(ref, route)
    problem = forbidden(route, Reason.WEIGHTS_RELEASED, Reason.WEIGHTS_SET_BY_ANOTHER, other)
    try:
        rule, backend = _place(route, fallback)
        if owner is None:
            _check_weights(route.weights(rule), backend, fallback)
    except LimitNotEnforceableError as error:
        problem = problem or refusal(error, Reason.ROUTE_NOT_USABLE)
        return InForce(values=values, refused=problem)
    return InForce(values={**values, RULE: rule, BACKEND: backend}, refused=problem)


def _check_weights(weights: Sequence[int], backend: int, fallback: str) -> None:
    """Check the owner's weights. Raises: LimitNotEnforceableError."""
    others = sum(weight for place, weight in enumerate(weights) if place != backend)
    refuse(
        (weights[backend], f"Service/{fallback} has weight {weights[backend]} there, not 0"),
        (not others, "no other backend has a weight"),
        (others > MOST_WEIGHT, f"its weights add up to {others}, more than {MOST_WEIGHT}"),
    )


def _place(route: WeightedRoute, fallback: str) -> tuple[int, int]:
    """Numbers of the rule and of the fallback in it. Raises: LimitNotEnforceableError."""
    refuse(
        (
            len(route.rules) != 1,
            f"it has {len(route.rules)} rules with backends, each counted apart",
        )
    )
    rule = route.rules[0]
    backends = route.backends(rule)
    for backend in backends:
        what = f"{backend.get('kind', 'Service')}/{backend['name']}"
        refuse(
            (_is_elsewhere(backend, route.namespace), f"it leads to {what}, no Service from here"),
            (
                not backend.get("filters"),
                f"{what} has no filter there, so that the gateway counts its backends together",
            ),
        )
    places = [place for place, one in enumerate(backends) if one["name"] == fallback]
    refuse(
        (len(places) != 1, f"Service/{fallback} is {len(places)} times among its backends, not 1"),
        (len(backends) == 1, "it has no other backend"),
    )
    return rule, places[0]


def _is_elsewhere(backend: Mapping[str, Any], namespace: str) -> bool:
    kind = backend.get("kind", "Service")
    return (
        kind != "Service"
        or bool(backend.get("group"))
        or backend.get("namespace", namespace) != namespace
    )


def _share(weights: Sequence[int], former: Sequence[int]) -> int:
    """The share in thousandths of the backends that had no weight before."""
    total = sum(weights)
    added = sum(now for now, before in zip(weights, former, strict=False) if before == 0)
    return round(THOUSANDTHS * added / total) if total else 0


def _set_by_another(ref: ResourceRef, route: WeightedRoute) -> str:
    owner = route.owner
    if owner is not None and not route.is_ours:
        return "another client set other weights; they are left alone"
    if owner is not None and owner.name != ref.name:
        return f"ServingSLO {owner.name} sets them already"
    return ""


def _is_wanted(route: WeightedRoute, owner: WeightsOwner, pools: Sequence[Targets]) -> bool:
    backends = zip(route.backends(owner.rule), owner.former, strict=False)
    added = {backend.get("name") for backend, before in backends if before == 0}
    return any(
        asked is not None and asked.route == route.name and asked.fallback in added
        for asked in (TARGETS.of(targets.features) for targets in pools)
    )


def _way_back(route: WeightedRoute, owner: WeightsOwner) -> Change:
    share = _share(owner.weights, owner.former) if route.is_ours else 0
    return _put_back((route.namespace, owner.name), route.title, share)


def _change(decision: Decision) -> Change | None:
    """The change of a fallback's share that a decision orders; None if it orders none."""
    decided = degradation_of(decision.knobs)
    if decided is None or decided.change_reason is None:
        return None
    because = "" if decided.cause is None else f"no further replica: {decided.cause.value}"
    return Change(
        namespace=decision.namespace,
        name=decision.name,
        target=f"HTTPRoute/{decided.route}",
        knob=ROUTE_WEIGHTS,
        settings=(
            _share_setting(round(decided.before * THOUSANDTHS), round(decided.after * THOUSANDTHS)),
        ),
        reason=decided.change_reason,
        detail=joined((because, decided.detail), "; "),
    )


def _put_back(resource: tuple[str, str], target: str, share: int) -> Change:
    """The owner's weights are restored. resource: namespace and name. share: in thousandths."""
    return Change(
        namespace=resource[0],
        name=resource[1],
        target=target,
        knob=ROUTE_WEIGHTS,
        settings=(_share_setting(share, 0),),
        reason=Reason.WEIGHTS_PUT_BACK,
    )


def _share_setting(before: int, after: int) -> Setting:
    return Setting(name="fallback_thousandths", before=before, after=after)


def _actuator(means: Means) -> RouteWeights:
    return RouteWeights(
        weighted_routes(means.client, namespaces=means.namespaces),
        GatewayServices(means.client),
        enabled=means.option(WeightsMoved) is not None,
    )


PART: ActuatorRow = _actuator
