"""What actuators are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.controller.actuators.protocol import Actuator
from servingslo.plugins import Aspect
from servingslo.policy.ports import RereadableWorkloads

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Inputs for making actuators: the API server, its kinds, and the view of workloads.

    namespaces: those that are watched; none means all. limit_kinds: objects that hold a gateway's
    bound and may be written, from the administrator's list. pod_templates: may be patched with
    batch limits. servers: may get limits while they run. options: of the features that are switched
    on. What stands of a thing that may not be changed any more is put back.
    """

    client: KubeClient
    discovery: Discovery
    workloads: RereadableWorkloads
    namespaces: tuple[str, ...] = ()
    limit_kinds: frozenset[str] = frozenset()
    pod_templates: bool = False
    servers: bool = False
    inventory: Inventory | None = None
    options: tuple[object, ...] = ()

    def option(self, kind: type[T]) -> T | None:
        """The options of this type; None where that feature is switched off."""
        return next((one for one in self.options if isinstance(one, kind)), None)


ActuatorRow = Callable[[Means], Actuator]
ACTUATOR: Aspect[ActuatorRow] = Aspect("actuator")
