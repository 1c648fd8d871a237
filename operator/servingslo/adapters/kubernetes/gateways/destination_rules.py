"""Check that a DestinationRule's bound applies to one workload only: its host and overrides.

Source: istio.io/api v1.31.4, networking/v1alpha3/destination_rule.proto: `host`, `subsets`,
`portLevelSettings`, `workloadSelector`, `exportTo`. A name without dots is in the rule's own
namespace; any other name is used unchanged.
"""

import re
from collections.abc import Collection, Sequence

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.gateways.limits import LimitHolder
from servingslo.adapters.kubernetes.gateways.services import GatewayServices, refuse
from servingslo.errors import LimitNotEnforceableError

_HOST = re.compile(r"(?P<name>[^.*]+)(?:\.(?P<namespace>[^.*]+)\.svc\.[^*]+)?")
_EVERYWHERE = "*"


class DestinationHosts:
    """Reads the Services that rules refer to, only in the rule's own namespace."""

    def __init__(self, client: KubeClient) -> None:
        self._services = GatewayServices(client)

    async def check(
        self,
        policy: LimitHolder,
        others: Sequence[LimitHolder],
        pods: Collection[str],
        fallback: str | None = None,  # noqa: ARG002 - a rule is for one Service
    ) -> None:
        """Check that the rule's bound applies to exactly these pods.

        others: every rule of the namespace.
        Raises: LimitNotEnforceableError if it does not; ClusterError if that cannot be determined.
        """
        spec, service = policy.spec, _service_of(policy)
        traffic = spec.get("trafficPolicy") or {}
        refuse(
            (service is None, f"its host, {spec.get('host')}, is no Service of this namespace"),
            (spec.get("subsets"), "it has subsets, each of which is counted apart"),
            (
                traffic.get("portLevelSettings"),
                "its portLevelSettings take the place of its connectionPool",
            ),
            (spec.get("workloadSelector"), "it is for some clients alone (workloadSelector)"),
            (
                _EVERYWHERE not in (spec.get("exportTo") or [_EVERYWHERE]),
                "clients of other namespaces do not see it (exportTo)",
            ),
        )
        for other in others:
            if other.uid != policy.uid and _service_of(other) == service:
                raise LimitNotEnforceableError(f"{other.title} is for Service/{service} as well")
        await self._services.check(policy.namespace, str(service), pods)


def _service_of(policy: LimitHolder) -> str | None:
    """The Service that the rule is for, in its own namespace; None if it is for another host."""
    host = _HOST.fullmatch(str(policy.spec.get("host", "")))
    if host is None or host["namespace"] not in {None, policy.namespace}:
        return None
    return host["name"]
