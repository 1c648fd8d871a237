"""The operator under test and its engines, one of each for a module; a tenant for each test."""

from collections.abc import Iterator

import kubernetes
import pytest
from tests.integration.audit import differences
from tests.integration.operator_under_test import Engines, Operator, Tenant, install_chart

from servingslo.api.crd import custom_resource_definition
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import (
    ENVOY_GATEWAY,
    GATEWAY_API,
    KEDA,
    install_crds,
    manifests,
)
from servingslo_lab.rig.waiting import wait_until

_SPEC_SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """Helm values of the chart whose permissions the operator has; modules override it."""
    return ()


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """Further flags of the operator; modules override it."""
    return ()


@pytest.fixture(scope="session")
def gateway_crds(rig: Rig) -> None:
    """The CRDs of Gateway API and Envoy Gateway, on the API server from the first test that asks.

    They stay: other tests are not to know whether they are there.
    """
    install_crds(rig.api_client(), GATEWAY_API, ENVOY_GATEWAY)


@pytest.fixture
def keda_crds(rig: Rig) -> Iterator[None]:
    """KEDA's own CRDs, gone at the end: other tests install theirs."""
    install_crds(rig.api_client(), KEDA)
    yield
    extensions = kubernetes.client.ApiextensionsV1Api(rig.api_client())
    for manifest in manifests(KEDA):
        extensions.delete_custom_resource_definition(manifest["metadata"]["name"])


@pytest.fixture(scope="module")
def engines(rig: Rig) -> Iterator[Engines]:
    """Simulated engines in every Ready pod, scraped once a second."""
    with rig.scrape_plan_kept():
        host = Engines(rig)
        rig.configure_prometheus(http_sd_url=f"{host.url}/sd", scrape_interval_seconds=1.0)
        yield host
        host.process.stop()


@pytest.fixture(scope="session")
def audited(rig: Rig) -> Iterator[None]:
    """At the end of the run, writes of every operator without one line in a log, and the reverse.

    By the audit log of the API server, over all tests that ran.
    """
    yield
    logs = sorted((rig.work_dir / "logs").glob("operator*.log"))
    found = differences(
        rig.audit_log.read_text(encoding="utf-8").splitlines(),
        [line for log in logs for line in log.read_text(encoding="utf-8").splitlines()],
    )
    assert not found, "\n".join(found)


@pytest.fixture(scope="module")
def operator(
    rig: Rig,
    audited: None,
    engines: Engines,
    chart_settings: tuple[str, ...],
    operator_settings: tuple[str, ...],
) -> Iterator[Operator]:
    """The operator, running; it ends with the module, so that it disturbs no other."""
    install_chart(rig, *chart_settings)
    running = Operator(rig, *operator_settings)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def tenant(rig: Rig, namespace: str, engines: Engines, operator: Operator) -> Iterator[Tenant]:
    """A tenant of the running operator with a namespace of its own."""
    user = Tenant(rig, namespace, engines)
    yield user
    user.end_traffic()


@pytest.fixture
def frozen_counts(rig: Rig, namespace: str) -> Iterator[str]:
    """A policy of the cluster that refuses every change of a replica count in the namespace."""
    api = kubernetes.client.AdmissionregistrationV1Api(rig.api_client())
    name = f"frozen-{namespace}"
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["deployments/scale"],
    }
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "counts are frozen"}],
        },
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    api.create_validating_admission_policy(policy)
    api.create_validating_admission_policy_binding(binding)
    yield name
    api.delete_validating_admission_policy_binding(name)
    api.delete_validating_admission_policy(name)


@pytest.fixture
def lenient_crd(rig: Rig, operator: Operator, tenant: Tenant) -> Iterator[None]:
    """A CRD without the rules of the spec, as an older chart might have left it behind."""
    crd = custom_resource_definition()
    name = crd["metadata"]["name"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    extensions = kubernetes.client.ApiextensionsV1Api(rig.api_client())

    def set_schema(value: dict) -> None:
        change = [{"op": "replace", "path": _SPEC_SCHEMA, "value": value}]
        extensions.patch_custom_resource_definition(name, change)

    def accepted() -> bool:
        try:
            tenant.create_slo("probe", anything=1, dry_run=True)
        except kubernetes.client.ApiException:
            return False
        return True

    set_schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    wait_until(accepted, what="the lenient CRD is in force")
    yield
    for item in tenant.slo_names():
        tenant.delete_slo(item)
    set_schema(schema)
    wait_until(lambda: not accepted(), what="the strict CRD is in force")
