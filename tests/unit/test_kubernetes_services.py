"""Whether a Service leads to the pods of one workload alone."""

from collections.abc import Mapping

import pytest

from servingslo.adapters.kubernetes.gateways.services import GatewayServices
from servingslo.errors import LimitNotEnforceableError

LONG_AGO = "2026-01-01T00:00:00Z"


class _Server:
    """A Service, and pods that its selector matches: each with its phase."""

    def __init__(self, **phases: str) -> None:
        self.phases = phases

    async def get(self, _path: str, query: Mapping[str, str] | None = None) -> dict:
        if query is None:
            return {"spec": {"selector": {"app": "chat"}}}
        kept = [one.partition("!=") for one in query.get("fieldSelector", "").split(",") if one]
        assert {field for field, _, _ in kept} <= {"status.phase"}
        found = [
            {
                "metadata": {"name": name, "creationTimestamp": LONG_AGO},
                "status": {"phase": phase},
            }
            for name, phase in sorted(self.phases.items())
            if phase not in {value for _, _, value in kept}
        ]
        return {"items": found[: int(query["limit"])]}


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_pod_that_was_evicted_is_none_of_another_workload(phase: str) -> None:
    """Kubernetes keeps such pods of a Deployment, and sends them no request."""
    server = _Server(chat="Running", evicted=phase)
    await GatewayServices(server).check("a", "chat", ["chat"])  # type: ignore[arg-type]


async def test_pods_that_were_evicted_hide_no_other() -> None:
    """However many are kept, only pods that may get requests are listed."""
    evicted = {f"evicted-{number}": "Failed" for number in range(1200)}
    server = _Server(chat="Running", stranger="Running", **evicted)
    with pytest.raises(LimitNotEnforceableError, match="such as stranger"):
        await GatewayServices(server).check("a", "chat", ["chat"])  # type: ignore[arg-type]


async def test_a_target_at_zero_has_a_service_of_its_own() -> None:
    """No pod is left to select; a bound on pods of others is refused all the same."""
    await GatewayServices(_Server()).check("a", "chat", [])  # type: ignore[arg-type]
    with pytest.raises(LimitNotEnforceableError, match="such as stranger"):
        await GatewayServices(_Server(stranger="Running")).check("a", "chat", [])  # type: ignore[arg-type]


async def test_a_service_of_other_pods_alone_is_told() -> None:
    """Its selector does not fit the labels of this workload."""
    with pytest.raises(LimitNotEnforceableError, match="selects none of this workload's pods"):
        await GatewayServices(_Server()).check("a", "chat", ["chat"])  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["Running", "Pending"])
async def test_a_pod_of_another_workload_is_told(phase: str) -> None:
    """A bound would be on its requests too."""
    server = _Server(chat="Running", stranger=phase)
    with pytest.raises(LimitNotEnforceableError, match="such as stranger"):
        await GatewayServices(server).check("a", "chat", ["chat"])  # type: ignore[arg-type]
