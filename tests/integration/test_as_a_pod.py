"""The image as the pods of a release: what Helm installs runs, decides, and ends in order."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import kubernetes
import pytest
import yaml
from tests.integration.operator_under_test import (
    CHART,
    RELEASE,
    RELEASE_NAMESPACE,
    SERVICE_ACCOUNT,
    Engines,
    Tenant,
    steady_trace,
)

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.image.build import Image
from servingslo_lab.rig.image.kubelet import Kubelet, RunningPod
from servingslo_lab.rig.kubernetes.kwok import FAILURE_ANNOTATION, STOP_DELAY_ANNOTATION
from servingslo_lab.rig.waiting import wait_until

SURGE_PER_SECOND = 12.0
# Of the chart.
REPLICAS = 2
# KWOK gives these pods an address and leaves the rest to this test's kubelet. All are on one
# machine: each listens at its own address, as it does on all addresses in a pod of a cluster.
OF_THE_RIG = {
    "podAnnotations": {FAILURE_ANNOTATION: "hang", STOP_DELAY_ANNOTATION: "60s"},
    "extraEnv": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    "extraArgs": ["--health-host=$(POD_IP)"],
}
MEBIBYTE = 1024 * 1024
MOUNT_POINTS = ("etc/hosts", "run/secrets")

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(2400)]


@pytest.fixture
def kubelet(rig: Rig, audited: None, image: Image) -> Iterator[Kubelet]:
    """Runs pods of the release's namespace from the image."""
    with Kubelet(rig, RELEASE_NAMESPACE, image).running() as running:
        yield running


def test_the_release_s_pods_run_the_image(
    rig: Rig, kubelet: Kubelet, image: Image, engines: Engines, namespace: str, tmp_path: Path
) -> None:
    """Installed, tested, deciding, taken over and uninstalled; nothing is written to the root."""
    core = kubernetes.client.CoreV1Api(rig.api_client())
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({**OF_THE_RIG, "prometheus": {"url": rig.prometheus_url}}))
    before = _files(image.root)
    # Waits until both pods answer their probes.
    rig.helm(
        "upgrade", "--install", RELEASE, str(CHART), f"--namespace={RELEASE_NAMESPACE}",
        "--create-namespace", "--take-ownership", "--force-conflicts", f"--values={values}",
        "--wait", "--timeout=150s",
    )  # fmt: skip
    assert [pod.ready for pod in kubelet.pods] == [True, True]
    _check_confinement(kubelet.pods[0], image)
    tested = rig.helm("test", RELEASE, f"--namespace={RELEASE_NAMESPACE}", "--timeout=60s")
    assert "Succeeded" in tested.stdout

    tenant = Tenant(rig, namespace, engines)
    tenant.create_deployment(replicas=1)
    tenant.create_slo()
    tenant.wait_condition("MetricsFresh", "True")
    trace = steady_trace(tmp_path / "surge.csv", rate=SURGE_PER_SECOND, seconds=30)
    tenant.begin_traffic(trace, duration_seconds=900)
    tenant.wait(lambda: tenant.replicas() > 1, what="a scale-up", timeout_seconds=240)
    leader = _leader(rig)

    core.delete_namespaced_pod(leader, RELEASE_NAMESPACE)
    wait_until(lambda: _leader(rig) not in {leader, ""}, what="another leads", timeout_seconds=30)
    former = next(pod for pod in kubelet.pods if pod.name == leader)
    wait_until(lambda: former.stop_seconds is not None, what="it ended", timeout_seconds=30)
    served = tenant.slo()["metadata"]["resourceVersion"]
    tenant.wait(
        lambda: tenant.slo()["metadata"]["resourceVersion"] != served, what="its next status"
    )
    tenant.end_traffic()
    tenant.delete_slo()
    tenant.wait(lambda: not tenant.slo_exists(), what="the ServingSLO is gone")

    operators = [pod for pod in kubelet.pods if pod.restart_policy == "Always"]
    assert len(operators) == REPLICAS + 1
    wait_until(lambda: operators[-1].ready, what="its successor is ready", timeout_seconds=120)
    rig.helm("uninstall", RELEASE, f"--namespace={RELEASE_NAMESPACE}", "--wait")
    wait_until(lambda: all(pod.ended for pod in kubelet.pods), what="all ended")
    wait_until(
        lambda: not core.list_namespaced_pod(RELEASE_NAMESPACE).items, what="their objects go"
    )
    for pod in kubelet.pods:
        _check_end(pod)
    assert kubelet.errors == []
    assert _files(image.root) == before


def _leader(rig: Rig) -> str:
    """The pod that holds the release's Lease, '' if none does."""
    api = kubernetes.client.CoordinationV1Api(rig.api_client())
    lease = api.read_namespaced_lease(SERVICE_ACCOUNT, RELEASE_NAMESPACE)
    return str(lease.spec.holder_identity or "").partition("_")[0]


def _check_confinement(pod: RunningPod, image: Image) -> None:
    """Its process 1 is the image's user, has no right, and no folder of a disk to write to."""
    place = Path(f"/proc/{pod.first_process}")
    said = dict(
        line.split(":\t", maxsplit=1)
        for line in (place / "status").read_text(encoding="ascii").splitlines()
    )
    root = os.geteuid() == 0
    # Without root the image's user is this one, seen from here.
    user, group = image.user if root else (os.geteuid(), os.getegid())
    assert said["NSpid"].split()[-1] == "1"
    assert said["CapEff"] == "0" * 16
    assert said["CapBnd"] == "0" * 16 or not root
    assert said["NoNewPrivs"] == "1"
    assert (said["Uid"].split()[1], said["Gid"].split()[1]) == (str(user), str(group))
    mounts = [line.split() for line in (place / "mounts").read_text().splitlines()]
    writable = {m[1]: m[2] for m in mounts if "rw" in m[3].split(",")}
    devices = {name for name in writable if name.startswith("/dev")}
    assert {name: kind for name, kind in writable.items() if name not in devices} == {
        "/proc": "proc",
        "/tmp": "tmpfs",
    }
    token = place / "root/run/secrets/kubernetes.io/serviceaccount/token"
    assert token.is_file()
    assert list((place / "root/tmp").iterdir()) == []


def _check_end(pod: RunningPod) -> None:
    """It ended by itself within the grace period, passed its probes, and stayed in its memory."""
    assert pod.notes == []
    assert pod.process.exit_status == 0, pod.process.log_tail()
    if pod.restart_policy == "Always":
        assert pod.stop_seconds is not None
        assert pod.stop_seconds < pod.grace_seconds
        # A busy machine misses the second of a single one; several in a row would be in the notes.
        assert pod.probes["livenessProbe"].asked > pod.probes["livenessProbe"].all_failures
        limit = int(pod.container["resources"]["limits"]["memory"].removesuffix("Mi")) * MEBIBYTE
        assert 0 < pod.peak_memory_bytes < limit


def _files(root: Path) -> dict[str, tuple[int, int, int]]:
    """Every file under the root with mode, size and time of its last change.

    Without the mount points, which are made before the first start; folders without size and time.
    """
    found = {}
    for path in root.rglob("*"):
        about, name = path.lstat(), str(path.relative_to(root))
        if not name.startswith(MOUNT_POINTS):
            changed = (0, 0) if stat.S_ISDIR(about.st_mode) else (about.st_size, about.st_mtime_ns)
            found[name] = (about.st_mode, *changed)
    return found
