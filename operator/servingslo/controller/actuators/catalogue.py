"""Every actuator, in the order in which a decision is carried out."""

from collections.abc import Callable

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.gateways.destination_rules import DestinationHosts
from servingslo.adapters.kubernetes.gateways.limits import (
    BACKEND_TRAFFIC_POLICY,
    DESTINATION_RULE,
    LimitForm,
    limit_holders,
)
from servingslo.adapters.kubernetes.gateways.route_weights import weighted_routes
from servingslo.adapters.kubernetes.gateways.routes import GatewayRoutes
from servingslo.adapters.kubernetes.gateways.services import GatewayServices, LimitReach
from servingslo.adapters.kubernetes.replicas import KubernetesReplicas
from servingslo.controller.actuators.gateway_limits import GatewayLimits
from servingslo.controller.actuators.lanes import Lanes
from servingslo.controller.actuators.means import ACTUATOR, ActuatorRow, Means
from servingslo.controller.actuators.replicas import ReplicaCount
from servingslo.controller.actuators.route_weights import RouteWeights

# Each kind of object that holds a gateway's bound, and how to find the bound's resource.
_LIMITS: tuple[tuple[LimitForm, Callable[[KubeClient], LimitReach]], ...] = (
    (BACKEND_TRAFFIC_POLICY, GatewayRoutes),
    (DESTINATION_RULE, DestinationHosts),
)


def _gateway_limits(means: Means) -> GatewayLimits:
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


ACTUATORS: tuple[ActuatorRow, ...] = (
    lambda means: ReplicaCount(KubernetesReplicas(means.client, means.discovery), means.workloads),
    *ACTUATOR.parts(),
    lambda means: RouteWeights(
        weighted_routes(means.client, namespaces=means.namespaces),
        GatewayServices(means.client),
        enabled=means.route_weights,
    ),
    _gateway_limits,
    lambda means: Lanes(_gateway_limits(means)),
)
