"""Batch limits reach one pod first, on engines that do not quite obey the law.

All fleets of a module live at the same time: each takes minutes, most of which is waiting.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.manifests import workload
from tests.integration.operator_under_test import Engines, Operator, Tenant, steady_trace

from servingslo.adapters.kubernetes.batch_canary import CANARY_ANNOTATION
from servingslo.rig.cluster import Rig
from servingslo.rig.uneven_law import UNEVEN_ANNOTATION
from servingslo.rig.waiting import wait_until

FEW = 8
REPLICAS = 3
RATE_PER_SECOND = 8.0
READY_DELAY = "3s"
# Engines with their own ways: a little slow, and no two steps alike.
UNEVEN = "slowness=1.1,jitter=0.2"
# The same, and a kernel for larger batches that takes many times as long.
STEP_IN_THE_LAW = f"{UNEVEN},above={FEW},step=20"
# So many that more than the former limit run at once.
BUSY_PER_SECOND = 12.0
BEGUN_SECONDS = 240.0
ENDED_SECONDS = 600.0
UNDER_WAY = {"BatchingCanaryStarted", "BatchingCanaryHeld"}
SMALL_NODE = {"rig.servingslo.dev/pool": "full"}


@pytest.fixture(scope="module")
def chart_settings() -> tuple[str, ...]:
    """The administrator lets the operator patch pod templates."""
    return ("batching.apply.enabled=true",)


@pytest.fixture(scope="module")
def operator_settings() -> tuple[str, ...]:
    """As the chart passes it on."""
    return ("--batching-apply=true",)


@dataclass
class Fleet:
    """A workload under load whose engines run with a batch that is too small."""

    tenant: Tenant
    kind: str
    first: dict[str, Any]

    def read(self) -> dict[str, Any]:
        """The workload as the API server has it."""
        api = self.tenant.rig.api_client()
        apps, namespace = self.tenant.apps, self.tenant.namespace
        read = {
            "Deployment": apps.read_namespaced_deployment,
            "StatefulSet": apps.read_namespaced_stateful_set,
        }[self.kind]
        found: dict[str, Any] = api.sanitize_for_serialization(read("chat", namespace))
        return found

    @property
    def canary(self) -> bool:
        """Whether one stands."""
        text = (self.read()["metadata"].get("annotations") or {}).get(CANARY_ANNOTATION)
        return text is not None and "since_seconds" in json.loads(text)

    @property
    def limit(self) -> int:
        """Most running sequences, by the template's last flag."""
        words = self.read()["spec"]["template"]["spec"]["containers"][0]["args"]
        flags = [word for word in words if word.startswith("--max-num-seqs=")]
        return int(flags[-1].partition("=")[2])

    def pods(self) -> dict[str, int]:
        """How many live pods there are of each template."""
        found: dict[str, int] = {}
        listed = self.tenant.core.list_namespaced_pod(
            self.tenant.namespace, label_selector="app=chat"
        )
        for pod in listed.items:
            labels = pod.metadata.labels
            key = labels.get("pod-template-hash") or labels["controller-revision-hash"]
            if not pod.metadata.deletion_timestamp:
                found[key] = found.get(key, 0) + 1
        return found

    def ready(self) -> int:
        """Ready pods."""
        return int((self.read().get("status") or {}).get("readyReplicas") or 0)

    def wait_begun(self, operator: Operator) -> None:
        """Until one pod has other limits, or had them."""
        self.tenant.wait(
            lambda: bool(self.changes(operator)),
            what="a canary begins",
            timeout_seconds=BEGUN_SECONDS,
        )

    def wait_ended(self, operator: Operator, timeout_seconds: float = ENDED_SECONDS) -> None:
        """Until it is over; while that is watched at most one pod has other limits."""
        most = 0

        def over() -> bool:
            nonlocal most
            pods, standing = self.pods(), self.canary
            if standing and len(pods) > 1:
                most = max(most, min(pods.values()))
            return not standing and self.changes(operator)[-1] not in UNDER_WAY

        self.tenant.wait(over, what="the canary is over", timeout_seconds=timeout_seconds)
        assert most <= 1

    def wait_one_template(self) -> None:
        """Until all pods are of one template, and ready."""
        self.tenant.wait(
            lambda: list(self.pods().values()) == [REPLICAS] and self.ready() == REPLICAS,
            what="all pods are of one template",
            timeout_seconds=120,
        )

    def changes(self, operator: Operator) -> list[str]:
        """What was changed of the limits, and why, by the log."""
        lines = operator.log_lines(
            " changed ", f"namespace={self.tenant.namespace} ", "knob=batch-limits"
        )
        return [line.split(" reason=")[1].split()[0] for line in lines]

    def without_ours(self) -> dict[str, Any]:
        """The spec but for the count, and the annotation that a way back leaves."""
        spec = self.read()["spec"]
        return {key: value for key, value in spec.items() if key != "replicas"}


def _fleet(
    rig: Rig,
    engines: Engines,
    folder: Path,
    name: str,
    *,
    kind: str = "Deployment",
    uneven: str = UNEVEN,
    node: dict[str, str] | None = None,
    rate: float = RATE_PER_SECOND,
) -> Fleet:
    namespace = rig.create_namespace(f"canary-{name}")
    tenant = Tenant(rig, namespace, engines)
    manifest = workload(
        "chat", replicas=REPLICAS, args=[f"--max-num-seqs={FEW}"], ready_delay=READY_DELAY
    )
    template = manifest["spec"]["template"]
    template["metadata"]["annotations"][UNEVEN_ANNOTATION] = uneven
    template["spec"].update({"nodeSelector": node} if node else {})
    if kind == "StatefulSet":
        manifest["spec"]["serviceName"] = "chat"
        tenant.apps.create_namespaced_stateful_set(namespace, manifest)
    else:
        tenant.apps.create_namespaced_deployment(namespace, manifest)
    fleet = Fleet(tenant, kind, {})
    tenant.wait(lambda: fleet.ready() == REPLICAS, what="the fleet is ready")
    fleet.first = fleet.without_ours()
    trace = steady_trace(folder / f"{name}.csv", rate=rate, seconds=30)
    tenant.begin_traffic(trace, duration_seconds=1800)
    tenant.create_slo(
        targetRef={"kind": kind, "name": "chat"},
        replicas={"min": REPLICAS, "max": REPLICAS},
        batching={"mode": "Auto", "minInterval": "10m"},
    )
    return fleet


@pytest.fixture(scope="module")
def fleets(
    rig: Rig, engines: Engines, operator: Operator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Fleet]]:
    """Fleets of this module, all under load at once."""
    folder = tmp_path_factory.mktemp("traces")
    rig.add_nodes(1, gpus_per_node=REPLICAS, labels=SMALL_NODE)
    found = {
        "good": _fleet(rig, engines, folder, "good"),
        "set": _fleet(rig, engines, folder, "set", kind="StatefulSet"),
        "bad": _fleet(rig, engines, folder, "bad", uneven=STEP_IN_THE_LAW, rate=BUSY_PER_SECOND),
        "full": _fleet(rig, engines, folder, "full", node=SMALL_NODE),
    }
    yield found
    for fleet in found.values():
        fleet.tenant.end_traffic()
        rig.delete_namespace(fleet.tenant.namespace)


@pytest.mark.parametrize("name", ["good", "set"])
def test_good_limits_reach_all_pods_after_one(
    fleets: dict[str, Fleet], operator: Operator, name: str
) -> None:
    """One pod, the verdict, then the rollout that its owner had asked for, to the letter."""
    fleet = fleets[name]
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    told = fleet.changes(operator)
    assert told[0] == "BatchingCanaryStarted"
    assert told[-1] == "BatchingChanged"
    assert fleet.limit > FEW
    fleet.wait_one_template()
    rollout = {key: value for key, value in fleet.without_ours().items() if key != "template"}
    assert rollout == {key: value for key, value in fleet.first.items() if key != "template"}
    fleet.tenant.wait_event("BatchingCanaryStarted")
    fleet.tenant.wait_event("BatchingChanged")


def test_limits_that_serve_worse_are_taken_back_to_the_letter(
    fleets: dict[str, Fleet], operator: Operator
) -> None:
    """A step in the law beyond the former limit: the canary is worse, and its template goes."""
    fleet = fleets["bad"]
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    told = fleet.changes(operator)
    assert told[0] == "BatchingCanaryStarted"
    assert told[-1] == "BatchingRolledBack"
    assert fleet.without_ours() == fleet.first
    fleet.wait_one_template()
    fleet.tenant.wait_event("BatchingRolledBack")
    told = [text for why, text in fleet.tenant.events() if why == "BatchingRolledBack"]
    assert any("elsewhere" in text for text in told)


def test_a_pod_that_finds_no_gpu_is_taken_back(
    fleets: dict[str, Fleet], operator: Operator
) -> None:
    """The node is full: the new pod never comes, and the former template does."""
    fleet = fleets["full"]
    fleet.wait_begun(operator)
    fleet.wait_ended(operator)
    assert fleet.changes(operator)[-1] == "BatchingCanaryFailed"
    assert fleet.without_ours() == fleet.first
    fleet.wait_one_template()
    fleet.tenant.wait_event("BatchingCanaryFailed")
    told = [text for why, text in fleet.tenant.events() if why == "BatchingCanaryFailed"]
    assert any("Insufficient nvidia.com/gpu" in text for text in told)


@pytest.fixture
def killed(rig: Rig, engines: Engines, operator: Operator, tmp_path: Path) -> Iterator[Fleet]:
    """One more fleet, whose operator is killed now and then."""
    fleet = _fleet(rig, engines, tmp_path, "killed")
    yield fleet
    fleet.tenant.end_traffic()
    rig.delete_namespace(fleet.tenant.namespace)


def test_an_operator_killed_on_the_way_finishes_what_it_began(
    killed: Fleet, operator: Operator
) -> None:
    """Killed after each step that it told; what it finds on the object is enough to go on."""
    seen: list[str] = []

    def news() -> bool:
        return len(killed.changes(operator)) > len(seen)

    while not seen or seen[-1] != "BatchingChanged":
        wait_until(news, what="a further step", timeout_seconds=ENDED_SECONDS)
        seen = killed.changes(operator)
        if seen[-1] != "BatchingChanged":
            assert operator.process is not None
            operator.process.stop(kill=True)
            operator.start()
    assert seen[:2] == ["BatchingCanaryStarted", "BatchingCanaryHeld"]
    assert killed.limit > FEW
    assert not killed.canary


def test_a_resource_that_goes_takes_its_canary_with_it(
    rig: Rig, engines: Engines, operator: Operator, tmp_path: Path
) -> None:
    """Deleted in mid-canary, while the operator is away: the former template at its start."""
    fleet = _fleet(rig, engines, tmp_path, "gone")
    fleet.wait_begun(operator)
    operator.stop()
    fleet.tenant.delete_slo()
    operator.start()
    fleet.wait_ended(operator, 60.0)
    assert fleet.without_ours() == fleet.first
    assert fleet.changes(operator)[-1] == "BatchingRolledBack"
    fleet.tenant.end_traffic()
    rig.delete_namespace(fleet.tenant.namespace)


def test_an_edit_of_the_template_has_the_last_word(
    rig: Rig, engines: Engines, operator: Operator, tmp_path: Path
) -> None:
    """Somebody sets another limit meanwhile: it stands, and the rollout goes on as he has it."""
    fleet = _fleet(rig, engines, tmp_path, "edited")
    fleet.wait_begun(operator)
    args = ["--model=tiny", "--max-num-seqs=16", "--max-num-batched-tokens=2048"]
    container = {"name": "vllm", "args": args}
    fleet.tenant.apps.patch_namespaced_deployment(
        "chat",
        fleet.tenant.namespace,
        {"spec": {"template": {"spec": {"containers": [container]}}}},
    )
    fleet.wait_ended(operator, 60.0)
    assert fleet.changes(operator)[-1] == "BatchingLeftToUser"
    found = fleet.without_ours()
    assert found["template"]["spec"]["containers"][0]["args"] == args
    assert found["strategy"] == fleet.first["strategy"]
    assert not found.get("paused")
    fleet.tenant.end_traffic()
    rig.delete_namespace(fleet.tenant.namespace)
