"""What each version of Kubernetes has to bear: installs, a life, an upgrade and its way back."""

import re
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from tests.acceptance.run import ROOT
from tests.integration.crd_server import CRDS, MINIMAL, Server
from tests.integration.operator_under_test import (
    CHART,
    LENGTH_SPREAD,
    RELEASE,
    RELEASE_NAMESPACE,
    Engines,
    Operator,
    Tenant,
    steady_trace,
)

from servingslo.api.v1alpha1 import API_VERSION
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

# Until there is a release: the commit before the first of these runs.
FORMER = "03f881d3"
# Several times what each of them takes on an idle machine.
PATIENCE_SECONDS = 300.0
LIVE = ("live-0", "live-1", "live-2", "live-3", "live-4")
# One replica of these engines serves about six such requests per second: two do not serve it.
SURGE_PER_SECOND = 18.0
# Two serve it.
LOAD_PER_SECOND = 10.0
LEARNING_SECONDS = 60.0
# Eight GPUs each: for all live resources and a workload at its most.
_NODES = 4
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
CONFINED = {
    "pod": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    },
    "container": {
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    },
}
EVERY_SWITCH = (
    "degradation.enabled=true",
    "batching.apply.enabled=true",
    "budgets.enabled=true",
    "admission.kinds={BackendTrafficPolicy,DestinationRule}",
)
# What docs/how-to/install.md says stays after an uninstall, and what expires by itself.
STAYS = frozenset({"customresourcedefinitions", "apiservices", "leases", "namespaces", "events"})
RUNS_PODS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Pod": "/api/v1/namespaces/{}/pods",
}


def expect(holds: bool, why: str) -> None:
    """Go on if something holds. Raises: RigError with the reason otherwise."""
    if not holds:
        raise RigError(why)


@dataclass
class Ground:
    """A cluster of one version, and what the steps have put on it so far."""

    rig: Rig
    engines: Engines
    tenant: Tenant
    former: Path
    folder: Path
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        """Know the API server by plain HTTP."""
        self.server = Server(self.rig)

    def helm(self, chart: Path, *settings: str, major: int = 4, wait: bool = False) -> None:
        """Install or upgrade the release."""
        self.rig.helm(
            "upgrade", "--install", RELEASE, str(chart), f"--namespace={RELEASE_NAMESPACE}",
            f"--set=prometheus.url={self.rig.prometheus_url}",
            *(f"--set={one}" for one in settings),
            *(("--wait", "--timeout=150s") if wait else ()),
            major=major,
        )  # fmt: skip

    @contextmanager
    def operator(self, code: Path = ROOT) -> Iterator[Operator]:
        """The operator of this code as a process, with the rights of the release's account."""
        prefix = () if code == ROOT else ("env", f"PYTHONPATH={code / 'operator'}")
        running = Operator(self.rig, name=f"operator-{code.name}", prefix=prefix)
        running.start(timeout_seconds=PATIENCE_SECONDS)
        try:
            yield running
        finally:
            running.stop()

    def create(self, name: str, **spec: Any) -> None:
        """A workload that the restricted profile admits, and a ServingSLO on it."""
        self.tenant.create_deployment(name, **CONFINED)
        self.tenant.create_slo(name, **spec)

    def wait(self, check: Callable[[], bool], what: str) -> None:
        """Wait until something holds. Raises: RigError that names it."""
        self.tenant.wait(check, what=what, timeout_seconds=PATIENCE_SECONDS)


@contextmanager
def ground(rig: Rig, folder: Path) -> Iterator[Ground]:
    """Nodes, engines, a tenant and the release's namespace, both under the restricted profile."""
    former = folder / "former"
    if not former.exists():
        archive = subprocess.run(
            ["git", "archive", FORMER, "operator", "charts"],
            cwd=ROOT, capture_output=True, check=True,
        ).stdout  # fmt: skip
        with tarfile.open(fileobj=BytesIO(archive)) as packed:
            packed.extractall(former, filter="data")
    rig.add_nodes(_NODES)
    rig.create_namespace(RELEASE_NAMESPACE, RESTRICTED)
    engines = Engines(rig)
    rig.configure_prometheus(http_sd_url=f"{engines.url}/sd", scrape_interval_seconds=1.0)
    tenant = Tenant(rig, rig.create_namespace("models", RESTRICTED), engines)
    yield Ground(rig=rig, engines=engines, tenant=tenant, former=former, folder=folder)
    tenant.end_traffic()


def crd(at: Ground) -> None:
    """The CRDs are accepted with the cost of their rules, and the rules are in force."""
    definitions = [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "crds").glob("*.yaml")
    ]
    for definition in definitions:
        answer = at.server.call("POST", CRDS, json=definition)
        expect(answer.ok and answer.headers.get("Warning") is None, answer.text[:300])
    at.wait(lambda: at.server.create("default", MINIMAL).ok, what="a resource is accepted")
    wrong = {**MINIMAL, "replicas": {"min": 9, "max": 8}}
    expect(at.server.create("default", wrong).status_code == 422, "min above max is accepted")
    for definition in definitions:
        name = definition["metadata"]["name"]
        at.server.call("DELETE", f"{CRDS}/{name}")
        at.wait(
            lambda name=name: at.server.call("GET", f"{CRDS}/{name}").status_code == 404,
            what=f"{name} is gone",
        )


def _installed(at: Ground, major: int) -> None:
    at.helm(CHART, major=major, wait=True)
    pods = at.tenant.core.list_namespaced_pod(RELEASE_NAMESPACE).items
    expect(len(pods) == 2, f"{len(pods)} pods of the release instead of 2")
    at.wait(lambda: at.server.create("models", MINIMAL).ok, what="a resource is accepted")
    uninstalled(at, major=major)


def helm_3(at: Ground) -> None:
    """Helm 3 installs the release, waits for its pods, and takes it away without left-overs."""
    _installed(at, 3)


def helm_4(at: Ground) -> None:
    """The same by Helm 4."""
    _installed(at, 4)


def restricted(at: Ground) -> None:
    """No pod of the chart, with every switch and hook, is against the restricted profile."""
    done = at.rig.helm(
        "template", RELEASE, str(CHART), f"--namespace={RELEASE_NAMESPACE}",
        *(f"--set={one}" for one in EVERY_SWITCH),
    )  # fmt: skip
    found = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] in RUNS_PODS]
    expect(len(found) > 1, "the chart renders no pods")
    for manifest in found:
        # The release has one of this name.
        manifest["metadata"]["name"] += "-once-more"
        answer = at.server.call(
            "POST",
            RUNS_PODS[manifest["kind"]].format(RELEASE_NAMESPACE),
            json=manifest,
            params={"dryRun": "All"},
        )
        told = answer.headers.get("Warning", "")
        expect(
            answer.ok and "PodSecurity" not in told, f"{manifest['kind']}: {told or answer.text}"
        )
    bare = {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    answer = at.server.call("POST", RUNS_PODS["Pod"].format(RELEASE_NAMESPACE), json=bare)
    expect(answer.status_code == 403, "the profile is not in force")


def _touched(at: Ground, most: int) -> None:
    """Each live resource is changed, and seen, by the operator that runs now."""
    for name in LIVE:
        at.tenant.patch_slo({"replicas": {"min": 2, "max": most}}, name)
    for name in LIVE:
        at.tenant.wait_reconciled(name)
        at.tenant.wait_condition("Ready", "True", name=name, timeout_seconds=PATIENCE_SECONDS)
        at.wait(lambda name=name: at.tenant.ready_replicas(name) >= 2, what=f"{name} has 2 pods")


def upgrade(at: Ground) -> None:
    """Live resources, one of them in a surge, through the upgrade of chart, CRD and operator."""
    at.helm(at.former / "charts" / CHART.name, "replicaCount=0")
    with at.operator(at.former):
        for name in LIVE:
            at.create(name, replicas={"min": 2, "max": 3})
        _touched(at, 4)
        surge = steady_trace(at.folder / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
        at.tenant.begin_traffic(surge, name=LIVE[0], duration_seconds=900)
        before = {name: at.tenant.slo(name) for name in LIVE}
        at.helm(CHART, "replicaCount=0")
    for name in LIVE:
        after = at.tenant.slo(name)
        for part in ("spec", "metadata.generation"):
            same = _part(after, part) == _part(before[name], part)
            expect(same, f"{name}: {part} changed by the upgrade")
        expect(at.tenant.replicas(name) >= 2, f"{name} was scaled down by the upgrade")
    with at.operator():
        at.wait(lambda: at.tenant.replicas(LIVE[0]) > 2, what="the surge is served")
        _touched(at, 6)
    at.tenant.end_traffic()


def scaling(at: Ground) -> None:
    """A workload follows its load, up and down, by what Prometheus has of it."""
    at.create("chat")
    with at.operator():
        at.tenant.wait_condition("MetricsFresh", "True", timeout_seconds=PATIENCE_SECONDS)
        load = steady_trace(
            at.folder / "load.csv", rate=LOAD_PER_SECOND, seconds=60, spread=LENGTH_SPREAD
        )
        at.tenant.begin_traffic(load, duration_seconds=900)
        at.wait(lambda: at.tenant.replicas() > 1, what="a scale-up")
        # A law that was seen for moments only forbids to go down.
        time.sleep(LEARNING_SECONDS)
        at.tenant.end_traffic()
        peak = at.tenant.replicas()
        at.wait(lambda: at.tenant.replicas() < peak, what="a scale-down")


def hpa(at: Ground) -> None:
    """A HorizontalPodAutoscaler on the same workload is named as a conflict, until it goes."""
    path = "/apis/autoscaling/v2/namespaces/models/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    manifest = {
        "metadata": {"name": "second"},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 80},
                    },
                }
            ],
        },
    }
    with at.operator():
        answer = at.server.call("POST", path, json=manifest)
        expect(answer.ok, answer.text[:300])
        at.tenant.wait_condition("Ready", "False", "ScalerConflict", timeout_seconds=120)
        told = at.tenant.message("Ready")
        expect("HorizontalPodAutoscaler/second" in told, f"the HPA is not named: {told}")
        at.server.call("DELETE", f"{path}/second")
        at.tenant.wait_condition("Ready", "True", timeout_seconds=120)


def back(at: Ground) -> None:
    """The release is rolled back, and the former operator goes on with all resources."""
    at.rig.helm("rollback", RELEASE, "1", f"--namespace={RELEASE_NAMESPACE}")
    with at.operator(at.former):
        _touched(at, 4)


def uninstalled(at: Ground, *, major: int = 4) -> None:
    """Uninstall: nothing is left but what the page names; resources and counts stay."""
    counts = {one.metadata.name: one.spec.replicas for one in _deployments(at)}
    named = set(at.tenant.slo_names())
    at.rig.helm("uninstall", RELEASE, f"--namespace={RELEASE_NAMESPACE}", "--wait", major=major)
    left: list[str] = []

    def nothing() -> bool:
        left[:] = _left(at.server)
        return not left

    try:
        wait_until(nothing, what="nothing is left", timeout_seconds=60, interval_seconds=1.0)
    except RigError as error:
        raise RigError(f"left: {', '.join(left[:5])}") from error
    expect(set(at.tenant.slo_names()) == named, "resources are gone")
    after = {one.metadata.name: one.spec.replicas for one in _deployments(at)}
    expect(after == counts, f"counts changed: {counts} to {after}")


def uninstall(at: Ground) -> None:
    """The upgraded release goes, and leaves the live resources and their counts."""
    at.helm(CHART, "replicaCount=0")
    uninstalled(at)


def _deployments(at: Ground) -> Sequence[Any]:
    return at.tenant.apps.list_namespaced_deployment(at.tenant.namespace).items


def _part(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = found[name]
    return found


def _left(server: Server) -> list[str]:
    """Objects of any kind that have the release's name or label, other than those that stay."""
    groups = [
        f"/apis/{one['preferredVersion']['groupVersion']}"
        for one in server.call("GET", "/apis").json()["groups"]
    ]
    found = []
    for group in ("/api/v1", *groups):
        if group.endswith(f"/{API_VERSION}"):
            continue
        for kind in server.call("GET", group).json().get("resources", ()):
            if "list" not in kind["verbs"] or kind["name"] in STAYS:
                continue
            items = server.call("GET", f"{group}/{kind['name']}").json().get("items") or ()
            found += [
                f"{kind['name']}/{one['metadata']['name']}"
                for one in items
                if re.search(r"\bservingslo", one["metadata"]["name"])
                or (one["metadata"].get("labels") or {}).get("app.kubernetes.io/instance")
                == RELEASE
            ]
    return found


STEPS: dict[str, Callable[[Ground], None]] = {
    "CRD": crd,
    "Helm 3": helm_3,
    "Helm 4": helm_4,
    "upgrade": upgrade,
    "scaling": scaling,
    "HPA": hpa,
    "restricted": restricted,
    "back": back,
    "uninstall": uninstall,
}
