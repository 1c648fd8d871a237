"""The chart's renderings by a matrix of values, and a release's life with either Helm."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from tests.e2e.chart_matrix import (
    CASES,
    CHART,
    DATA,
    KUBE_VERSION,
    NAMESPACE,
    WATCHED,
    flags,
    rendered,
)
from tests.integration.manifests import slo_spec

from servingslo.api.crd import definitions
from servingslo.api.v1alpha1 import API_VERSION, GROUP, PLURAL, VERSION
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

CRDS = Path(__file__).parent / "data" / "prometheus-operator"
# The chart as it was before monitors, leader election and admission came to it.
BEFORE = Path(__file__).parent / "data" / "chart-before.tgz"
CRD_NAME = f"{PLURAL}.{GROUP}"
LEARNED = {"schemaVersion": 1, "savedAt": "2026-11-24T12:00:00Z", "state": {"kept": [1.5, "x"]}}


@pytest.mark.parametrize("case", CASES)
def test_the_rendering_is_the_one_that_was_looked_at(rig: Rig, case: str) -> None:
    """`python -m tests.e2e.chart_matrix` writes it anew."""
    wanted = (DATA / f"{case}.yaml").read_text(encoding="utf-8")
    assert rendered(case) == wanted, "run python -m tests.e2e.chart_matrix and read the difference"


@pytest.mark.parametrize("case", CASES)
def test_the_operator_s_command_takes_the_arguments(rig: Rig, case: str) -> None:
    """Each is an option that it has, with a value only if it takes one."""
    assert flags(rendered(case))["prometheus_url"]


@pytest.fixture(scope="module")
def prepared(rig: Rig) -> Iterator[kubernetes.dynamic.DynamicClient]:
    """Namespaces and CRDs that the renderings speak of."""
    core = kubernetes.client.CoreV1Api(rig.api_client())
    there = {item.metadata.name for item in core.list_namespace().items}
    made = [name for name in (NAMESPACE, *WATCHED) if name not in there]
    for name in made:
        rig.create_namespace(name)
    extensions = kubernetes.client.ApiextensionsV1Api(rig.api_client())
    known = {item.metadata.name for item in extensions.list_custom_resource_definition().items}
    crds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in CRDS.glob("*.yaml")]
    ours = [crd for crd in crds if crd["metadata"]["name"] not in known]
    for crd in ours:
        extensions.create_custom_resource_definition(crd)
    wait_until(lambda: _served(rig), what="monitors are served", timeout_seconds=90.0)
    yield kubernetes.dynamic.DynamicClient(rig.api_client())
    for crd in ours:
        extensions.delete_custom_resource_definition(crd["metadata"]["name"])
    for name in made:
        rig.delete_namespace(name)


def _served(rig: Rig) -> bool:
    custom = kubernetes.client.CustomObjectsApi(rig.api_client())
    try:
        for plural in ("podmonitors", "servicemonitors", "prometheusrules"):
            custom.list_cluster_custom_object("monitoring.coreos.com", "v1", plural)
    except kubernetes.client.ApiException:
        return False
    return True


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_would_take_all_of_it(
    rig: Rig, prepared: kubernetes.dynamic.DynamicClient, case: str
) -> None:
    """Each object passes a dry run on the server, with unknown fields refused."""
    objects = [item for item in yaml.safe_load_all(rendered(case)) if item]
    assert len(objects) > 3
    for item in objects:
        # Another name than what a release of another test may have left there.
        item["metadata"]["name"] = f"dry-{item['metadata']['name']}"
        api = prepared.resources.get(api_version=item["apiVersion"], kind=item["kind"])
        where = {"namespace": item["metadata"]["namespace"]} if api.namespaced else {}
        api.create(body=item, dry_run="All", field_validation="Strict", **where)


def test_a_part_of_a_security_context_leaves_the_rest_in_force(rig: Rig) -> None:
    """A user ID or a writable file system keeps the other restrictions."""
    (pod,) = (
        item["spec"]["template"]["spec"]
        for item in yaml.safe_load_all(rendered("partial-contexts"))
        if item and item["kind"] == "Deployment"
    )
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_namespaced_mode_has_no_cluster_role(rig: Rig) -> None:
    """Roles in the watched namespaces alone, with what the ClusterRole would have had."""
    objects = [item for item in yaml.safe_load_all(rendered("namespaced")) if item]
    assert not any(item["kind"].startswith("Cluster") for item in objects)
    roles = {
        item["metadata"]["namespace"]: item["rules"]
        for item in objects
        if item["kind"] == "Role" and item["metadata"]["namespace"] in WATCHED
    }
    assert set(roles) == set(WATCHED)
    (cluster,) = (
        item["rules"]
        for item in yaml.safe_load_all(rendered("watched-namespaces"))
        if item
        and item["kind"] == "ClusterRole"
        and item["metadata"]["name"] == "servingslo-operator"
    )
    assert all(rules == cluster for rules in roles.values())


def test_the_namespaced_mode_needs_namespaces(rig: Rig) -> None:
    """Without any there is nothing that it may do."""
    with pytest.raises(RigError, match=r"rbac\.clusterRoles.*watchNamespaces"):
        rig.helm(
            "template",
            "x",
            str(CHART),
            f"--kube-version={KUBE_VERSION}",
            "--set=rbac.clusterRoles=false",
        )


def test_the_chart_passes_helm_s_linter(rig: Rig) -> None:
    """Strictly: a warning is a failure."""
    for major in (3, 4):
        rig.helm("lint", str(CHART), "--strict", f"--kube-version={KUBE_VERSION}", major=major)


def _release(rig: Rig, major: int, *arguments: str) -> None:
    rig.helm(*arguments, major=major)


@pytest.mark.parametrize("major", [3, 4])
def test_a_release_lives_through_upgrade_rollback_and_uninstall(
    rig: Rig, namespace: str, major: int
) -> None:
    """From the chart of before, with what was learnt: nothing of a resource is lost on the way.

    Without its CRDs: a version in which objects are stored cannot be taken away again.
    """
    name = f"life{major}"
    # The CRDs stay after an uninstall: Helm 4 says who owned their fields, Helm 3 takes them.
    take = ["--take-ownership"] + (["--force-conflicts"] if major == 4 else [])
    common = (f"--namespace={namespace}", "--set=replicaCount=0", *take)
    custom = kubernetes.client.CustomObjectsApi(rig.api_client())
    apps = kubernetes.client.AppsV1Api(rig.api_client())

    def slo() -> dict[str, Any]:
        return dict(custom.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, "chat"))

    def arguments() -> list[str]:
        found = apps.read_namespaced_deployment(f"{name}-servingslo-operator", namespace)
        return list(found.spec.template.spec.containers[0].args)

    extensions = kubernetes.client.ApiextensionsV1Api(rig.api_client())
    for definition in definitions():
        with suppress(kubernetes.client.ApiException):  # there already
            extensions.create_custom_resource_definition(definition)
    first = (*common, "--set=crds.install=false")
    _release(rig, major, "upgrade", "--install", name, str(BEFORE), *first)
    body = {"apiVersion": API_VERSION, "kind": "ServingSLO", "metadata": {"name": "chat"}}
    body["spec"] = slo_spec("chat", {"mode": "Recommend"})
    wait_until(lambda: _created(custom, namespace, body), what="a ServingSLO is taken")
    custom.patch_namespaced_custom_object_status(
        GROUP, VERSION, namespace, PLURAL, "chat", {"status": {"learned": LEARNED}}
    )
    before = slo()
    assert "--log-format=text" not in arguments()
    _release(rig, major, "upgrade", name, str(CHART), *common, "--set=logFormat=json")
    assert "--log-format=json" in arguments()
    assert slo()["status"]["learned"] == json.loads(json.dumps(LEARNED))
    # What was stated stands; fields that are new since then have their defaults.
    assert _within(before["spec"], slo()["spec"])
    _release(rig, major, "rollback", name, "1", f"--namespace={namespace}")
    assert not any(argument.startswith("--log-format") for argument in arguments())
    assert slo()["status"]["learned"] == LEARNED
    _release(rig, major, "upgrade", name, str(CHART), *common)
    _release(rig, major, "uninstall", name, f"--namespace={namespace}")
    assert slo()["metadata"]["uid"] == before["metadata"]["uid"]
    assert slo()["status"]["learned"] == LEARNED
    assert not apps.list_namespaced_deployment(namespace).items
    assert extensions.read_custom_resource_definition(CRD_NAME).spec.group == GROUP


def _created(custom: Any, namespace: str, body: dict[str, Any]) -> bool:
    try:
        custom.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, body)
    except kubernetes.client.ApiException as error:
        if error.status != 404:  # not served yet
            raise
        return False
    return True


def _within(before: Any, after: Any) -> bool:
    """Whether all that stood before stands there still."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and _within(value, after[key]) for key, value in before.items())
    return bool(before == after)
