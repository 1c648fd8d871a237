"""Every actuator, in the order in which a decision is carried out."""

from servingslo.adapters.kubernetes.replicas import KubernetesReplicas
from servingslo.controller.actuators.gateway_limits import gateway_limits
from servingslo.controller.actuators.means import ACTUATOR, ActuatorRow
from servingslo.controller.actuators.replicas import ReplicaCount

ACTUATORS: tuple[ActuatorRow, ...] = (
    lambda means: ReplicaCount(KubernetesReplicas(means.client, means.discovery), means.workloads),
    *ACTUATOR.parts(),
    gateway_limits,
)
