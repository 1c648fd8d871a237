"""Workloads whose engines run with a batch that is too small, and what becomes of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.manifests import workload
from tests.integration.operator_under_test import Engines, Operator, Tenant, steady_trace

from servingslo.features.batch_limits.records import CANARY_ANNOTATION
from servingslo.runtimes.launch.command_line import expanded
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.simulated.uneven_law import UNEVEN_ANNOTATION

FEW = 8
VARIABLE = "MAX_NUM_SEQS"
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
        container = self.read()["spec"]["template"]["spec"]["containers"][0]
        known = {one["name"]: one["value"] for one in container.get("env") or ()}
        words = expanded(container["args"], known)
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
        try:
            self.tenant.wait(
                lambda: bool(self.changes(operator)),
                what="a canary begins",
                timeout_seconds=BEGUN_SECONDS,
            )
        except RigError as error:
            told = operator.log_lines(f"namespace={self.tenant.namespace} ")
            error.add_note("\n".join(told[-5:]))
            error.add_note(str(self.tenant.message("BatchingInSync")))
            raise

    def wait_ended(self, operator: Operator, timeout_seconds: float = ENDED_SECONDS) -> None:
        """Until it is over; while that is watched at most one pod has other limits."""
        most = 0

        def look() -> None:
            nonlocal most
            pods = self.pods()
            if self.canary and len(pods) > 1:
                most = max(most, min(pods.values()))

        self.wait_over(operator, timeout_seconds, meanwhile=look)
        assert most <= 1

    def wait_over(
        self,
        operator: Operator,
        timeout_seconds: float = ENDED_SECONDS,
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Until no canary stands, and its last step is told."""

        def over() -> bool:
            meanwhile()
            return not self.canary and self.changes(operator)[-1] not in UNDER_WAY

        self.tenant.wait(over, what="the canary is over", timeout_seconds=timeout_seconds)

    def wait_one_template(self, replicas: int = REPLICAS) -> None:
        """Until so many pods are of one template, and ready."""
        self.tenant.wait(
            lambda: list(self.pods().values()) == [replicas] and self.ready() == replicas,
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


def start_fleet(
    rig: Rig,
    engines: Engines,
    folder: Path,
    name: str,
    *,
    kind: str = "Deployment",
    uneven: str = UNEVEN,
    node: dict[str, str] | None = None,
    rate: float = RATE_PER_SECOND,
    from_variable: bool = False,
    **spec: Any,
) -> Fleet:
    """A fleet under load with a ServingSLO that may change its limits, one pod first.

    spec: further fields of it.
    """
    namespace = rig.create_namespace(f"canary-{name}")
    tenant = Tenant(rig, namespace, engines)
    manifest = workload(
        "chat", replicas=REPLICAS, args=[f"--max-num-seqs={FEW}"], ready_delay=READY_DELAY
    )
    template = manifest["spec"]["template"]
    if from_variable:
        (container,) = template["spec"]["containers"]
        container["args"][-1] = f"--max-num-seqs=$({VARIABLE})"
        container["env"] = [{"name": "OTHER", "value": "8"}, {"name": VARIABLE, "value": str(FEW)}]
    template["metadata"]["annotations"][UNEVEN_ANNOTATION] = uneven
    template["spec"].update({"nodeSelector": node} if node else {})
    if kind == "StatefulSet":
        manifest["spec"] |= {"serviceName": "chat", "podManagementPolicy": "Parallel"}
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
        **spec,
    )
    return fleet
