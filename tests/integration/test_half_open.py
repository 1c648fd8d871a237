"""A half-open watch: what it told grows old, and that has a bound."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import yaml
from tests.integration.half_open import HalfOpenProxy
from tests.integration.operator_under_test import Engines, Operator, Tenant, install_chart

from servingslo_lab.rig.cluster import Rig

# 20 s of silence, and three requests that time out after 5 s.
BOUND_SECONDS = 35.0


@pytest.fixture(scope="module")
def proxy(rig: Rig) -> Iterator[HalfOpenProxy]:
    """Between the operator and the API server."""
    address = urlsplit(rig.api_url)
    proxy = HalfOpenProxy(address.hostname or "127.0.0.1", address.port or 443)
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def operator(rig: Rig, engines: Engines, proxy: HalfOpenProxy) -> Iterator[Operator]:
    """The operator, which reaches the API server through the proxy."""
    install_chart(rig)
    running = Operator(rig)
    config = yaml.safe_load(running.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    running.kubeconfig.write_text(yaml.safe_dump(config))
    running.start()
    yield running
    running.stop()


def test_a_silent_watch_is_given_up_soon(
    tenant: Tenant, operator: Operator, proxy: HalfOpenProxy
) -> None:
    """A count set by hand and a changed spec are seen within the bound, whatever hangs."""
    tenant.create_deployment(replicas=3)
    tenant.create_slo(replicas={"min": 1, "max": 6}, mode="Recommend")
    tenant.wait(
        lambda: tenant.status().get("replicas", {}).get("current") == 3, what="the count is seen"
    )
    proxy.fall_silent()
    tenant.scale(2)
    tenant.patch_slo({"mode": "Auto", "replicas": {"min": 4, "max": 6}})
    tenant.wait(
        lambda: tenant.replicas() == 4, what="a write by both", timeout_seconds=BOUND_SECONDS
    )
    refused = operator.log_lines("decided", tenant.namespace, "WriteConflict")
    assert len(refused) <= 1
