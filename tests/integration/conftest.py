"""The operator under test and its engines, shared by modules; a tenant for each test."""

from collections.abc import Iterator

import kubernetes
import pytest
from tests.integration.audit import differences
from tests.integration.crd_server import CRD_NAME, CRDS, Server, resources
from tests.integration.operator_under_test import Engines, Operator, Tenant, install_chart
from tests.integration.prometheus_pods import scraping, serving_pods
from tests.integration.prometheus_world import Pages

from servingslo.api.crd import custom_resource_definition
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.programs.upstream_crds import (
    ENVOY_GATEWAY,
    GATEWAY_API,
    KEDA,
    install_crds,
    manifests,
)
from servingslo_lab.rig.prometheus import Prometheus
from servingslo_lab.rig.waiting import wait_until

_SPEC_SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"


# Switches of the operator that modules share: nothing is done by them that no resource asks for.
_OTHER_KINDS = (
    ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    ("argoproj.io", "rollouts"),
    ("disaggregatedset.x-k8s.io", "disaggregatedsetrolescalers"),
    ("nvidia.com", "dynamographdeploymentscalingadapters"),
)
SHARED_CHART = (
    "batching.apply.enabled=true",
    "budgets.enabled=true",
    "admission.kinds[0]=BackendTrafficPolicy",
    "admission.kinds[1]=DestinationRule",
    *(
        f"extraScalableKinds[{place}].{field}={value}"
        for place, kind in enumerate(_OTHER_KINDS)
        for field, value in zip(("apiGroup", "resource"), kind, strict=True)
    ),
)
SHARED_FLAGS = (
    "--batching-apply=true",
    "--max-priority=10",
    "--admission-kind=BackendTrafficPolicy",
    "--admission-kind=DestinationRule",
)
_OWN = ("rig", "engines", "operator", "chart_settings", "operator_settings")


class Shared:
    """Engines, and the operator with the switches, from one module that asks for them to the next.

    They end before a module that has its own, so that they disturb no other.
    """

    def __init__(self) -> None:
        self._rig: Rig | None = None
        self._engines: Engines | None = None
        self._operator: Operator | None = None

    def engines(self, rig: Rig) -> Engines:
        """Their host, running."""
        if self._rig is not rig:
            self.end()
            self._rig = rig
        if self._engines is None or not self._engines.process.running:
            self._engines = Engines(rig)
        return self._engines

    def operator(self, rig: Rig) -> Operator:
        """The operator, running; the engines are there before it."""
        running = self._operator
        if running is None or running.process is None or not running.process.running:
            install_chart(rig, *SHARED_CHART)
            running = self._operator = Operator(rig, *SHARED_FLAGS)
            running.start()
        return running

    def end(self) -> None:
        """Both are gone."""
        if self._operator is not None:
            self._operator.stop()
        if self._engines is not None:
            self._engines.process.stop()
        self._operator = self._engines = None


_SHARED = pytest.StashKey[Shared]()


def _has_its_own(module: object) -> bool:
    """Whether a module has a rig, engines, or an operator of its own."""
    return any(hasattr(module, name) for name in _OWN)


def _shares(item: pytest.Item) -> bool:
    """Whether a test is run beside the shared operator."""
    names = getattr(item, "fixturenames", ())
    return "operator" in names and not _has_its_own(getattr(item, "module", None))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that share the operator come one after another."""
    sharing = {item.path for item in items if _shares(item)}
    items.sort(key=lambda item: item.path not in sharing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End what is shared where the next module has its own."""
    yield
    shared = item.session.stash.get(_SHARED, None)
    goes_on = nextitem is not None and (nextitem.path == item.path or _shares(nextitem))
    if shared is not None and not goes_on:
        shared.end()


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest, rig: Rig, audited: None) -> Iterator[Shared]:
    """What modules share."""
    found = request.session.stash[_SHARED] = Shared()
    yield found
    found.end()


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """Helm values of an operator of the module's own; modules override it."""
    return ()


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """Flags of an operator of the module's own; modules override it."""
    return ()


@pytest.fixture(scope="module")
def server(rig: Rig) -> Iterator[Server]:
    """An API server that serves the generated CRD; taken away again if it was not there before."""
    server = Server(rig)
    found = server.call("GET", f"{CRDS}/{CRD_NAME}").ok
    if not found:
        created = server.call("POST", CRDS, json=custom_resource_definition())
        assert created.ok, created.text
        assert created.headers.get("Warning") is None
    rig.wait_for(lambda: server.call("GET", resources("default")).ok, what="the CRD is served")
    yield server
    if not found:
        server.call("DELETE", f"{CRDS}/{CRD_NAME}")
        rig.wait_for(
            lambda: server.call("GET", f"{CRDS}/{CRD_NAME}").status_code == 404,
            what="the CRD is gone",
        )


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    """The pages of all pods; a test that changes one puts it back."""
    with serving_pods() as served:
        yield served


@pytest.fixture(scope="module")
def prometheus(pages: Pages) -> Iterator[Prometheus]:
    """A real Prometheus that has scraped every page."""
    with scraping(pages) as process:
        yield process


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
def engines(rig: Rig, shared: Shared) -> Iterator[Engines]:
    """Simulated engines in every Ready pod, scraped once a second."""
    with rig.scrape_plan_kept():
        host = shared.engines(rig)
        rig.configure_prometheus(http_sd_url=f"{host.url}/sd", scrape_interval_seconds=1.0)
        yield host


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
    request: pytest.FixtureRequest,
    rig: Rig,
    engines: Engines,
    shared: Shared,
    chart_settings: tuple[str, ...],
    operator_settings: tuple[str, ...],
) -> Iterator[Operator]:
    """The operator, running: the shared one, or one of the module's own that ends with it."""
    if not _has_its_own(request.module):
        yield shared.operator(rig)
        return
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
