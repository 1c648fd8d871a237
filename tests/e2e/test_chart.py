"""The chart on the real API server, with the real Helm."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import kubernetes
import pytest
import yaml

from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "charts" / "servingslo-operator")
CRD_NAME = "servingslos.servingslo.dev"
RELEASE = "servingslo"
KUBE_VERSION = "1.36.3"
# Another name than that of the operator under test, whose cluster-scoped objects are not ours.
INSTALLED = "second"


@pytest.fixture
def release(rig: Rig, namespace: str) -> Iterator[str]:
    """A namespace for a release that is uninstalled afterwards."""
    yield namespace
    rig.helm("uninstall", INSTALLED, f"--namespace={namespace}", "--ignore-not-found")


def _install(rig: Rig, namespace: str, *settings: str, chart: str = CHART) -> None:
    rig.helm(
        "upgrade",
        "--install",
        INSTALLED,
        chart,
        # The CRD of this control plane may have come with another test.
        "--take-ownership",
        "--force-conflicts",
        f"--namespace={namespace}",
        "--set=replicaCount=0",
        *(f"--set={setting}" for setting in settings),
    )


def _render(rig: Rig, *settings: str, major: int = 4) -> list[dict]:
    done = rig.helm(
        "template",
        RELEASE,
        CHART,
        f"--kube-version={KUBE_VERSION}",
        *(f"--set={s}" for s in settings),
        major=major,
    )
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def _only(documents: list[dict], kind: str, name: str | None = None) -> dict:
    found = [d for d in documents if d["kind"] == kind and name in {None, d["metadata"]["name"]}]
    assert len(found) == 1, f"{len(found)} documents of kind {kind}"
    return found[0]


@pytest.mark.rig
def test_install_upgrade_and_uninstall_keep_the_crd(rig: Rig, release: str) -> None:
    """A release installs, changes with an upgrade, and leaves CRD and resources behind."""
    _install(rig, release)
    extensions = kubernetes.client.ApiextensionsV1Api(rig.api_client())
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    before = extensions.read_custom_resource_definition(CRD_NAME)
    assert before.metadata.annotations["helm.sh/resource-policy"] == "keep"
    _install(rig, release, "mode=Recommend")
    deployment = apps.read_namespaced_deployment(f"{INSTALLED}-servingslo-operator", release)
    assert "--mode=Recommend" in deployment.spec.template.spec.containers[0].args
    notes = rig.helm("get", "notes", INSTALLED, f"--namespace={release}").stdout
    assert f"kubectl delete lease {INSTALLED}-servingslo-operator -n {release}\n" in notes
    assert "metadata.name=servingslo-acting-operator" in notes
    rig.helm("uninstall", INSTALLED, f"--namespace={release}")
    after = extensions.read_custom_resource_definition(CRD_NAME)
    assert after.metadata.uid == before.metadata.uid
    assert not apps.list_namespaced_deployment(release).items
    _install(rig, release)


@pytest.mark.rig
def test_a_rollback_returns_to_the_earlier_crd(rig: Rig, release: str, tmp_path: Path) -> None:
    """As the page of going back says: a field that only the later version knows is gone."""
    _install(rig, release)
    later = tmp_path / "chart"
    shutil.copytree(CHART, later)
    file = later / "files" / "servingslo.dev_servingslos.yaml"
    crd = yaml.safe_load(file.read_text(encoding="utf-8"))
    _spec_fields(crd)["later"] = {"type": "string"}
    file.write_text(yaml.safe_dump(crd), encoding="utf-8")
    _install(rig, release, chart=str(later))
    objects = kubernetes.client.CustomObjectsApi(rig.api_client())
    read = ("apiextensions.k8s.io", "v1", "customresourcedefinitions", CRD_NAME)
    assert "later" in _spec_fields(objects.get_cluster_custom_object(*read))
    rig.helm("rollback", INSTALLED, "1", f"--namespace={release}")
    assert "later" not in _spec_fields(objects.get_cluster_custom_object(*read))


def _spec_fields(crd: dict) -> dict:
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]["properties"]


@pytest.mark.rig
def test_the_chart_s_crd_is_the_generated_one(rig: Rig) -> None:
    """The template renders the CRD of crds/, but for the annotations that keep it."""
    generated = yaml.safe_load((ROOT / "crds" / "servingslo.dev_servingslos.yaml").read_text())
    rendered = _only(_render(rig), "CustomResourceDefinition", CRD_NAME)
    assert rendered["spec"] == generated["spec"]
    assert rendered["metadata"]["name"] == generated["metadata"]["name"]


@pytest.mark.rig
def test_the_crd_is_left_out_when_asked(rig: Rig) -> None:
    """crds.install=false renders no CRD."""
    kinds = {document["kind"] for document in _render(rig, "crds.install=false")}
    assert "CustomResourceDefinition" not in kinds


@pytest.mark.rig
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        pytest.param("mode=Auot", "mode", id="mode"),
        pytest.param("replicaCount=6", "replicaCount", id="replicas"),
        pytest.param("shards=0", "shards", id="no-shard"),
        pytest.param("shards=9", "shards", id="many-shards"),
        pytest.param("leaderElection.leaseSeconds=4", "leaseSeconds", id="short-lease"),
        pytest.param("leaderElection.renewSeconds=9", "renewSeconds", id="late-renewal"),
        pytest.param("leaderElection.retrySeconds=4", "retrySeconds", id="rare-attempts"),
        pytest.param("logLevel=LOUD", "logLevel", id="log-level"),
        pytest.param("image.digest=latest", "digest", id="digest"),
        pytest.param("fullnameOverride=Not_A_Name", "fullnameOverride", id="full-name"),
        pytest.param("extraArgs[0]=mode", "extraArgs", id="argument"),
        pytest.param("tickSeconds=0", "tickSeconds", id="tick"),
        pytest.param("prometheus.url=prometheus:9090", "url", id="url-without-scheme"),
        pytest.param("prometheus.url=http://a:9090/graph", "prometheus.url", id="url-of-a-page"),
        pytest.param("prometheus.url=http://a/api/v1/query", "prometheus.url", id="url-of-the-api"),
        pytest.param("prometheus.url=http://me:secret@a:9090", "url", id="url-with-credentials"),
        pytest.param(
            'prometheus.matchers=__name__="a"', "not of __name__", id="matcher-of-the-name"
        ),
        pytest.param("prometheus.timeoutSeconds=0", "timeoutSeconds", id="timeout"),
        pytest.param("prometheus.caFile=ca.crt", "caFile", id="ca-without-folder"),
        pytest.param(
            "prometheus.bearerTokenSecret=a,prometheus.bearerTokenFile=/b",
            "prometheus.bearerTokenFile: /b is not allowed",
            id="two-tokens",
        ),
        pytest.param(
            "prometheus.caConfigMap=a,prometheus.caFile=/b",
            "prometheus.caFile: /b is not allowed",
            id="two-authorities",
        ),
        pytest.param("limits.maxReplicas=-1", "maxReplicas", id="limit"),
        pytest.param("watchNamespaces[0]=Not_A_Name", "watchNamespaces", id="namespace"),
        pytest.param("batching.apply.enabled=yes-please", "enabled", id="switch"),
        pytest.param("batching.apply.serversOnly=1", "serversOnly", id="servers-only"),
        pytest.param("configMaps.read.enabled=1", "enabled", id="config-maps"),
        pytest.param("admission.kinds[0]=Secret", "kinds", id="admission-kind"),
        pytest.param("gateway.profile=nginx", "profile", id="gateway"),
        pytest.param("runtimes.vllm.metrics.running=a b", "running", id="runtime-metric"),
        pytest.param("runtimes.vllm.port=8000", "port", id="runtime-field"),
        pytest.param("runtimes.vllm.metrics.runing=a", "runing", id="runtime-metric-field"),
        pytest.param(
            "gateway.profile=envoy-gateway,gateway.reporter=source",
            "gateway.reporter: source is not allowed",
            id="reporter-of-another-gateway",
        ),
        pytest.param(
            "gateway.profile=istio,gateway.pattern=(?P<name>.)(?P<namespace>.)",
            "gateway.pattern: .* is not allowed",
            id="pattern-of-another-gateway",
        ),
        pytest.param("gateway.labels.workload=a b", "workload", id="gateway-label"),
        pytest.param(
            r"podLabels.app\.kubernetes\.io/name=mine", "app.kubernetes.io/name", id="own-label"
        ),
        pytest.param("mod=Auto", "mod", id="unknown-value"),
        pytest.param(
            "image.repository=REGISTRY/servingslo",
            "image.repository: REGISTRY/servingslo is not allowed",
            id="placeholder",
        ),
        pytest.param("image.repository=example.com/a:1.0", "without tag", id="tag-in-name"),
        pytest.param("image.repository=https://example.com/a", "repository", id="scheme"),
        pytest.param("image.registry=<yours>", "image.registry: <yours>", id="registry"),
        pytest.param("global.imageRegistry=REGISTRY", "global.imageRegistry", id="registry-of-all"),
        pytest.param("image.tag=0.1 0", 'image.tag: "0.1 0" is not allowed', id="tag-with-blank"),
        pytest.param("image.tag=:latest", "image.tag", id="tag-with-colon"),
        pytest.param(
            "prometheus.basicAuthSecret=a,prometheus.bearerTokenSecret=b",
            "prometheus.basicAuthSecret: a is not allowed",
            id="two-kinds-of-credentials",
        ),
        pytest.param(
            "prometheus.basicAuthSecret=a,prometheus.bearerTokenFile=/b",
            "prometheus.basicAuthSecret: a is not allowed",
            id="credentials-and-own-token",
        ),
        pytest.param(
            "resources.limits.memory=10Mi",
            "resources.limits.memory: 10Mi is not allowed; allowed: 128Mi or more",
            id="little-memory",
        ),
        pytest.param("resources.limits.memory=512MB", "memory of 512MB", id="no-quantity"),
        pytest.param("resources.limits.memory=1000000", "limits.memory", id="bytes"),
        pytest.param("resources.requests.memory=1Gi", "at most the limit, 512Mi", id="request"),
        pytest.param(
            "keda.externalScaler.enabled=true,keda.externalScaler.plainText=true,"
            "keda.externalScaler.clientCASecret=a",
            "keda.externalScaler.clientCASecret: a is not allowed",
            id="clients-authority-without-tls",
        ),
        pytest.param("serviceAccount.create=false", "serviceAccount.name", id="no-account"),
        pytest.param(
            r"commonLabels.app\.kubernetes\.io/name=mine", "commonLabels", id="label-of-the-chart"
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(rig: Rig, setting: str, named: str) -> None:
    """Helm refuses a value outside the schema and names it."""
    with pytest.raises(RigError, match=named):
        _render(rig, setting)


@pytest.mark.rig
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param((), "image.repository is the default", id="image"),
        pytest.param(
            ("networkPolicy.enabled=true", "prometheus.url=http://metrics.m.svc:8481/select/0"),
            "networkPolicy.egressPorts lacks 8481, the port of prometheus.url",
            id="port",
        ),
        pytest.param(
            ("networkPolicy.enabled=true", "prometheus.url=http://metrics.m.svc/select"),
            "networkPolicy.egressPorts lacks 80, ",
            id="port-of-scheme",
        ),
        pytest.param(
            ("batching.apply.serversOnly=true",),
            "batching.apply.serversOnly has no effect without batching.apply.enabled",
            id="servers-only-alone",
        ),
        pytest.param(
            ("batching.apply.serversOnly=true", "batching.apply.enabled=true"),
            "without engines.ranges it speaks to none",
            id="servers-without-ranges",
        ),
        pytest.param(
            ("admission.kinds[0]=EngineArguments",),
            "EngineArguments has no effect without batching.apply.enabled",
            id="engine-arguments",
        ),
        pytest.param(
            ("resources.limits.memory=300Mi",),
            "resources.limits.memory is 300Mi; 1024 engine pods (expectedPods) need 512Mi",
            id="memory",
        ),
        pytest.param(("rbac.create=false",), "rbac.create is off", id="rights"),
    ],
)
def test_what_has_no_effect_or_another_one_is_said_after_an_install(
    rig: Rig, settings: tuple[str, ...], said: str
) -> None:
    """The notes name the value; without it, and with an image of one's own, they are silent."""

    def notes(*all_settings: str) -> str:
        sets = (f"--set={one}" for one in all_settings)
        done = rig.helm("install", RELEASE, CHART, "--dry-run=client", *sets)
        return done.stdout.split("\nNOTES:\n")[1]

    assert said in notes(*settings)
    fitting = ("image.registry=example.com", "networkPolicy.enabled=true")
    assert "Look at these values again" not in notes(*fitting)


@pytest.mark.rig
def test_the_notes_name_watched_namespaces_alone(rig: Rig) -> None:
    """Their commands need no right beyond these, and a ServingSLO elsewhere would not be seen."""
    watched = "--set=watchNamespaces={team-a,team-b}"
    done = rig.helm("install", RELEASE, CHART, "--dry-run=client", watched)
    notes = done.stdout.split("\nNOTES:\n")[1]
    assert "namespace: team-a}" in notes
    assert notes.count("servingslo-acting-operator -n team-") == 2
    assert "inference" not in notes
    assert " -A" not in notes


@pytest.mark.rig
def test_an_image_of_a_registry_of_all_charts_comes_before_one_s_own(rig: Rig) -> None:
    """global.imageRegistry, image.registry, image.repository, in this order."""

    def image(*settings: str) -> str:
        pod = _only(_render(rig, *settings), "Deployment")["spec"]["template"]["spec"]
        return pod["containers"][0]["image"].rpartition(":")[0]

    assert image() == "servingslo/operator"
    own = "image.registry=example.com:5000/mirror/"
    assert image(own) == "example.com:5000/mirror/servingslo/operator"
    assert image(own, "global.imageRegistry=other.example") == "other.example/servingslo/operator"


@pytest.mark.rig
def test_tenants_are_apart_where_that_is_asked(rig: Rig) -> None:
    """Budgets, ConfigMaps, Leases and metrics: the least of each, and nothing of it by default."""
    watched = "watchNamespaces={team-a,team-b}"
    documents = _render(
        rig,
        watched,
        "budgets.enabled=true",
        "configMaps.read.enabled=true",
        "configMaps.read.namespaces={team-a}",
        "metricsAuthorization.enabled=true",
        "networkPolicy.enabled=true",
    )
    budgets = _only(documents, "ClusterRole", "servingslo-operator-budgets")["rules"]
    assert budgets[2]["resourceNames"] == ["team-a", "team-b"]
    places = [
        (one["kind"], one["metadata"].get("namespace"))
        for one in documents
        if one["kind"].endswith("Role")
        for rule in one["rules"]
        if "configmaps" in rule.get("resources", ())
    ]
    assert places == [("Role", "team-a")]
    leases = [
        rule
        for one in documents
        if one["kind"].endswith("Role")
        for rule in one["rules"]
        if "leases" in rule.get("resources", ())
    ]
    assert all(rule["resourceNames"] for rule in leases)
    pod = _only(documents, "Deployment")["spec"]["template"]["spec"]
    assert "--health-host=127.0.0.1" in pod["containers"][0]["args"]
    assert pod["containers"][0]["livenessProbe"]["httpGet"]["port"] == 8443
    (ingress,) = _only(documents, "NetworkPolicy")["spec"]["ingress"]
    selected = ingress["from"][0]["namespaceSelector"]["matchLabels"]
    assert selected == {"kubernetes.io/metadata.name": "monitoring"}
    assert ingress["ports"] == [{"protocol": "TCP", "port": "https"}]


@pytest.mark.rig
def test_bounds_may_be_written_only_into_listed_kinds(rig: Rig) -> None:
    """Permission, flag and the job that puts bounds back at the end come with the kind."""

    def parts(*settings: str) -> tuple[set[str], list[str], list[dict]]:
        documents = _render(rig, *settings)
        role = _only(documents, "ClusterRole", "servingslo-operator")
        patched = {
            resource
            for rule in role["rules"]
            if "patch" in rule["verbs"]
            for resource in rule["resources"]
        }
        pod = _only(documents, "Deployment")["spec"]["template"]["spec"]
        flags = [flag for flag in pod["containers"][0]["args"] if "admission-kind" in flag]
        return patched, flags, [one for one in documents if one["kind"] == "Job"]

    patched, flags, jobs = parts()
    assert "backendtrafficpolicies" not in patched
    assert (flags, jobs) == ([], [])
    patched, flags, jobs = parts("admission.kinds[0]=BackendTrafficPolicy")
    assert "backendtrafficpolicies" in patched
    assert "services" not in patched
    assert "httproutes" not in patched
    assert flags == ["--admission-kind=BackendTrafficPolicy"]
    assert jobs[0]["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert jobs[0]["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "release", "--all", "--admission-kind=BackendTrafficPolicy", "--no-degradation",
        "--no-node-buffers",
    ]  # fmt: skip
    patched, flags, jobs = parts("admission.kinds[0]=DestinationRule")
    assert "destinationrules" in patched
    assert "backendtrafficpolicies" not in patched
    _, flags, jobs = parts("batching.apply.enabled=true")
    assert flags == []
    assert jobs[0]["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "release", "--all", "--admission-kind=EngineArguments", "--no-degradation",
        "--no-node-buffers",
    ]  # fmt: skip


@pytest.mark.rig
def test_the_lease_that_is_asked_for_is_the_one_that_is_allowed(rig: Rig) -> None:
    """The flags name the Lease that the Role permits, and say the terms of the values."""
    documents = _render(rig, "leaderElection.leaseSeconds=20", "leaderElection.renewSeconds=12")
    arguments = _only(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    role = _only(documents, "Role")
    named = [rule for rule in role["rules"] if "resourceNames" in rule]
    assert [rule["verbs"] for rule in named] == [["create", "get", "patch", "update"]]
    assert f"--lease-name={named[0]['resourceNames'][0]}" in arguments
    assert f"--lease-namespace={role['metadata']['namespace']}" in arguments
    assert {"--lease-seconds=20", "--lease-renew-seconds=12", "--lease-retry-seconds=2"} <= set(
        arguments
    )


@pytest.mark.rig
def test_helm_3_renders_the_same_chart(rig: Rig) -> None:
    """Helm 3 and Helm 4 render equal documents."""
    assert _render(rig, major=3) == _render(rig, major=4)
