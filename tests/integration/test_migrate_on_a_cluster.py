"""`servingslo migrate` on a real API server: it reads an HPA there, and its output is stored."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.integration.crd_server import CRD_NAME, CRDS, Server, resources
from tests.unit.test_migrate import HPA, SCALED_OBJECT, TTFT, changed, prometheus

from servingslo.api.crd import custom_resource_definition
from servingslo_lab.rig.cluster import Rig


@pytest.fixture(scope="module")
def server(rig: Rig) -> Iterator[Server]:
    """An API server with the CRD; taken away again if it was not there before."""
    server = Server(rig)
    found = server.call("GET", f"{CRDS}/{CRD_NAME}").ok
    if not found:
        assert server.call("POST", CRDS, json=custom_resource_definition()).ok
    rig.wait_for(lambda: server.call("GET", resources("default")).ok, what="the CRD is served")
    yield server
    if not found:
        server.call("DELETE", f"{CRDS}/{CRD_NAME}")


def migrate(rig: Rig, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command, as an administrator would call it."""
    return subprocess.run(
        [sys.executable, "-m", "servingslo.cli", "migrate", *arguments],
        env={**os.environ, "KUBECONFIG": str(rig.admin_kubeconfig)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def stored(server: Server, namespace: str, out: str) -> dict[str, Any]:
    """The spec that the API server has of what was written."""
    made = server.call("POST", resources(namespace), json=yaml.safe_load(out))
    assert made.ok, made.text
    spec: dict[str, Any] = made.json()["spec"]
    return spec


def test_an_hpa_of_the_cluster_becomes_a_stored_resource(
    rig: Rig, server: Server, namespace: str
) -> None:
    """With the API server's own defaults in the HPA; one that is not there is exit code 1."""
    hpas = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    hpa = {**HPA, "metadata": {"name": "llama-chat"}}
    made = server.call("POST", hpas, json=hpa)
    assert made.ok, made.text
    done = migrate(rig, "hpa/llama-chat", "-n", namespace)
    assert done.returncode == 0, done.stderr
    spec = stored(server, namespace, done.stdout)
    assert (spec["mode"], spec["replicas"]["min"], spec["replicas"]["max"]) == ("Recommend", 2, 16)
    assert spec["behavior"]["scaleDown"]["selectPolicy"] == "Min"
    assert spec["targetRef"]["apiVersion"] == "apps/v1"
    absent = migrate(rig, "hpa/none", "-n", namespace)
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "none" in absent.stderr


def test_a_scaled_object_s_manifest_is_stored_too(rig: Rig, server: Server, namespace: str) -> None:
    """With every field that one can have."""
    source = changed(
        {**SCALED_OBJECT, "metadata": {"name": "chat"}},
        fallback={"failureThreshold": 3, "replicas": 200},
        triggers=[prometheus(TTFT, "0.5"), prometheus("sum(q)", "5")],
    )
    done = migrate(rig, "-", "-n", namespace, stdin=yaml.safe_dump(source))
    spec = stored(server, namespace, done.stdout)
    assert spec["replicas"] == {"min": 0, "max": 100, "idleAfter": "5m", "toleratedFailures": 0}
    assert spec["objectives"] == [{"metric": "ttft", "percentile": 95, "threshold": "500ms"}]
    assert spec["fallback"] == {"behavior": "Floor", "replicas": 100, "staleAfter": "1m30s"}
