"""Objects of the former API version through an upgrade of the chart, and back, on a cluster."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.crd_server import CRD_NAME, CRDS, MINIMAL, STATUS, Server
from tests.integration.operator_under_test import CHART, RELEASE, RELEASE_NAMESPACE, Operator

from servingslo.api.v1alpha1 import API_VERSION, GROUP, KIND, PLURAL
from servingslo.api.v1alpha1 import VERSIONS as NEWEST_FIRST
from servingslo_lab.rig.cluster import Rig

NEW, OLD = NEWEST_FIRST
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One of its own: a version in which objects were stored cannot be taken from a CRD."""
    with Rig.start() as running:
        yield running


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """The chart as it was: its CRDs have the former version alone, and lists without keys."""
    chart = tmp_path / "former"
    shutil.copytree(CHART, chart)
    for path in (chart / "files").glob(f"{GROUP}_*.yaml"):
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
        (old,) = (one for one in definition["spec"]["versions"] if one["name"] == OLD)
        schema = old["schema"]["openAPIV3Schema"]["properties"]
        del schema["status"]["default"]
        for part in schema["spec"]["properties"].values():
            if part.get("x-kubernetes-list-map-keys") == ["metric", "percentile"]:
                del part["x-kubernetes-list-map-keys"], part["x-kubernetes-list-type"]
        definition["spec"]["versions"] = [{**old, "storage": True, "deprecated": False}]
        del definition["spec"]["versions"][0]["deprecationWarning"]
        path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    return chart


def helm(rig: Rig, chart: Path, *settings: str) -> None:
    """Upgrade the release to a chart, without a running operator."""
    rig.helm(
        "upgrade", "--install", RELEASE, str(chart), f"--namespace={RELEASE_NAMESPACE}",
        "--create-namespace", "--set=replicaCount=0", *(f"--set={one}" for one in settings),
    )  # fmt: skip


def resource(version: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A ServingSLO as a manifest states it."""
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": KIND,
        "metadata": {"name": "llama-chat", "namespace": "default"},
        "spec": spec,
    }


def path_in(version: str) -> str:
    """The path of the ServingSLO in a version."""
    return f"/apis/{GROUP}/{version}/namespaces/default/{PLURAL}/llama-chat"


def test_objects_of_the_former_version_are_read_and_decided_after_an_upgrade(
    rig: Rig, former: Path
) -> None:
    """Spec, status and owners of fields stay; the operator decides; and the chart goes back."""
    server = Server(rig)

    def applied(version: str, spec: dict[str, Any], manager: str) -> dict[str, Any]:
        answer = server.call(
            "PATCH",
            path_in(version),
            data=yaml.safe_dump(resource(version, spec)),
            headers=APPLY,
            params={"fieldManager": manager, "fieldValidation": "Strict"},
        )
        assert answer.ok, answer.text
        return answer.json()

    helm(rig, former)
    rig.wait_for(
        lambda: server.call("GET", path_in(OLD).rpartition("/")[0]).ok, what="the CRD is served"
    )
    assert server.call("GET", f"/apis/{API_VERSION}").status_code == 404
    before = applied(OLD, MINIMAL, "platform")
    merge = {"Content-Type": "application/merge-patch+json"}
    body = {"status": STATUS}
    written = server.call("PATCH", f"{path_in(OLD)}/status", json=body, headers=merge).json()

    helm(rig, CHART)
    rig.wait_for(lambda: server.call("GET", path_in(NEW)).ok, what="the new version is served")
    after = server.call("GET", path_in(NEW)).json()
    assert (after["apiVersion"], after["spec"]) == (API_VERSION, before["spec"])
    assert after["status"] == written["status"]
    assert after["status"]["learned"] == STATUS["learned"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    stored = server.call("GET", f"{CRDS}/{CRD_NAME}").json()
    assert stored["status"]["storedVersions"] == [OLD, NEW]
    told = server.call("GET", path_in(OLD)).headers["Warning"]
    assert f"write {API_VERSION}" in told
    # Who applied the list as a whole applies its items now; another manager adds its own.
    second = {"metric": "tpot", "percentile": 95, "threshold": "80ms"}
    applied(NEW, {"objectives": [second]}, "team")
    again = applied(NEW, MINIMAL, "platform")
    assert again["spec"]["objectives"] == [*MINIMAL["objectives"], second]

    operator = Operator(rig)
    operator.start()

    def conditions() -> dict[str, str]:
        found = server.call("GET", path_in(NEW)).json()["status"]
        return {one["type"]: one["reason"] for one in found["conditions"]}

    rig.wait_for(lambda: conditions()["Ready"] == "TargetNotFound", what="a decision")
    assert conditions()["Stalled"] == "TargetNotFound"
    operator.stop()

    back = ("rollback", RELEASE, "1", f"--namespace={RELEASE_NAMESPACE}")
    refused = rig.helm(*back, check=False)
    assert "status.storedVersions" in refused.stderr
    helm(rig, former, "crds.install=false")
    old = server.call("GET", path_in(OLD)).json()
    assert old["spec"]["objectives"] == again["spec"]["objectives"]
