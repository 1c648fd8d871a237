"""Every actuator, in the order in which a decision is carried out."""

from servingslo.adapters.kubernetes.gateways.route_weights import weighted_routes
from servingslo.adapters.kubernetes.gateways.services import GatewayServices
from servingslo.adapters.kubernetes.replicas import KubernetesReplicas
from servingslo.controller.actuators.gateway_limits import gateway_limits
from servingslo.controller.actuators.means import ACTUATOR, ActuatorRow
from servingslo.controller.actuators.replicas import ReplicaCount
from servingslo.controller.actuators.route_weights import RouteWeights

ACTUATORS: tuple[ActuatorRow, ...] = (
    lambda means: ReplicaCount(KubernetesReplicas(means.client, means.discovery), means.workloads),
    *ACTUATOR.parts(),
    lambda means: RouteWeights(
        weighted_routes(means.client, namespaces=means.namespaces),
        GatewayServices(means.client),
        enabled=means.route_weights,
    ),
    gateway_limits,
)
