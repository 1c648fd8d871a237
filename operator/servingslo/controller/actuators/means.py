"""What actuators are made of."""

from collections.abc import Callable
from dataclasses import dataclass

from servingslo.adapters.engines.model_repository import ModelRepository
from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.controller.actuators.protocol import Actuator
from servingslo.plugins import Aspect
from servingslo.policy.ports import RereadableWorkloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Inputs for making actuators: the API server, its kinds, and the view of workloads.

    namespaces: those that are watched; none means all. limit_kinds: objects that hold a gateway's
    bound and may be written, from the administrator's list. route_weights: may be changed for a
    fallback. pod_templates: may be patched with batch limits. servers: may get limits while they
    run. models: access to engines. What stands of a thing that may not be changed any more is put
    back.
    """

    client: KubeClient
    discovery: Discovery
    workloads: RereadableWorkloads
    namespaces: tuple[str, ...] = ()
    limit_kinds: frozenset[str] = frozenset()
    route_weights: bool = False
    pod_templates: bool = False
    servers: bool = False
    models: ModelRepository | None = None


ActuatorRow = Callable[[Means], Actuator]
ACTUATOR: Aspect[ActuatorRow] = Aspect("actuator")
