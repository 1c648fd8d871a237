"""Every actuator, in the order in which a decision is carried out."""

from servingslo.adapters.kubernetes.batch_limits.canary import BatchCanaries
from servingslo.adapters.kubernetes.gateways.route_weights import weighted_routes
from servingslo.adapters.kubernetes.gateways.services import GatewayServices
from servingslo.adapters.kubernetes.replicas import KubernetesReplicas
from servingslo.controller.actuators.engine_limits import EngineLimits
from servingslo.controller.actuators.gateway_limits import gateway_limits
from servingslo.controller.actuators.means import ACTUATOR, ActuatorRow
from servingslo.controller.actuators.replicas import ReplicaCount
from servingslo.controller.actuators.route_weights import RouteWeights
from servingslo.policy.inputs import LimitKind

ACTUATORS: tuple[ActuatorRow, ...] = (
    lambda means: ReplicaCount(KubernetesReplicas(means.client, means.discovery), means.workloads),
    lambda means: EngineLimits(
        BatchCanaries(means.client, namespaces=means.namespaces),
        templates=means.pod_templates,
        bounds=LimitKind.ENGINE_ARGUMENTS in means.limit_kinds,
    ),
    lambda means: RouteWeights(
        weighted_routes(means.client, namespaces=means.namespaces),
        GatewayServices(means.client),
        enabled=means.route_weights,
    ),
    *ACTUATOR.parts(),
    gateway_limits,
)
