"""Everything the demo starts: rig, simulated engines, chart, operator, workload, traffic."""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
import yaml

from servingslo.units import parse_duration_seconds
from servingslo_lab.cli.demo.dashboard import Answered, answered
from servingslo_lab.cli.demo.report import ProcessUse, Truth
from servingslo_lab.cli.demo.timeline import DemoObjective
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.waiting import free_port

CHART = Path("charts/servingslo-operator")
EXAMPLE = Path("examples/01-minimal")
# The story is shorter than the default window of a new workload, which would hide the release.
STABILIZATION_SECONDS = 45
TRACE = Path("examples/traces/azure_llm_2023_conversation.csv")
OPERATOR_NAMESPACE = "servingslo-system"
SERVICE_ACCOUNT = "servingslo-operator"
SCRAPE_INTERVAL_SECONDS = 2.0
TICK_SECONDS = 5.0
NODE_COUNT = 3
_HTTP_TIMEOUT_SECONDS = 5.0
_READY_TIMEOUT_SECONDS = 120.0
_GROUP, _VERSION, _PLURAL = "servingslo.dev", "v1beta1", "servingslos"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSystem:
    """The running system, and how to look at it."""

    rig: Rig
    engines_url: str
    operator: ManagedProcess
    resource: Mapping[str, Any]
    started_seconds: float

    @property
    def namespace(self) -> str:
        """Of the example's resource."""
        return str(self.resource["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Of the example's resource."""
        return str(self.resource["metadata"]["name"])

    def objectives(self) -> tuple[DemoObjective, ...]:
        """The objectives of the example's resource."""
        return tuple(
            DemoObjective(
                metric=o["metric"],
                percentile=float(o["percentile"]),
                threshold_seconds=parse_duration_seconds(o["threshold"]),
            )
            for o in self.resource["spec"]["objectives"]
        )

    def status(self) -> Mapping[str, Any]:
        """The resource's status as the API server has it, empty before the first decision."""
        api = kubernetes.client.CustomObjectsApi(self.rig.api_client())
        found: Mapping[str, Any] = api.get_namespaced_custom_object(
            _GROUP, _VERSION, self.namespace, _PLURAL, self.name
        )
        return found.get("status") or {}

    def replicas(self) -> tuple[int, int]:
        """Desired and ready replicas of the target, from the target itself."""
        apps = kubernetes.client.AppsV1Api(self.rig.api_client())
        target = self.resource["spec"]["targetRef"]["name"]
        found = apps.read_namespaced_deployment(target, self.namespace)
        return found.spec.replicas or 0, found.status.ready_replicas or 0

    def traffic(self) -> Mapping[str, Any]:
        """The truth about the traffic, from the engines."""
        traffic: Mapping[str, Mapping[str, Any]] = _get(f"{self.engines_url}/stats")["traffic"]
        return traffic[self.name]

    def begin_traffic(self, plan: Mapping[str, Any]) -> None:
        """Start the replay."""
        labels = {"app": self.resource["spec"]["targetRef"]["name"]}
        thresholds = {o.metric: o.threshold_seconds for o in self.objectives()}
        document = {
            "name": self.name,
            "namespace": self.namespace,
            "selector": labels,
            "ttft_seconds": thresholds["ttft"],
            "tpot_seconds": thresholds["tpot"],
            **plan,
        }
        _post(f"{self.engines_url}/traffic", document)

    def in_flight(self) -> int:
        """Requests that arrived and have not ended."""
        stats = self.traffic()
        return int(stats["offered"]) - int(stats["over"])

    def truth(self) -> Truth:
        """How the requests were really served; requests still in flight count as missed."""
        stats = self.traffic()
        offered = int(stats["offered"])
        return Truth(
            request_count=offered,
            share_in_slo_ratio=stats["in_slo"] / offered if offered else 0.0,
            minute_shares=tuple(
                m["in_slo"] / m["offered"] if m["offered"] else None for m in stats["minutes"]
            ),
        )

    def dashboard(self, root: Path, start_seconds: float, end_seconds: float) -> list[Answered]:
        """The panels of the chart's dashboard between two times (Unix), as Prometheus answers."""
        board = json.loads((root / CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
        return answered(
            board,
            self.rig.prometheus_url,
            start_seconds=start_seconds,
            end_seconds=end_seconds,
            step_seconds=TICK_SECONDS,
            scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS,
        )

    def operator_use(self, wall_seconds: float) -> ProcessUse | None:
        """CPU and memory of the operator so far; None where the system does not tell."""
        folder = Path(f"/proc/{self.operator.pid}")
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            status = (folder / "status").read_text()
        except OSError:
            return None
        ticks = int(fields[11]) + int(fields[12])
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return ProcessUse(
            cpu_seconds=ticks / _clock_ticks_per_second(),
            wall_seconds=wall_seconds,
            peak_memory_bytes=int(peak.split()[1]) * 1024.0,
        )


@contextmanager
def demo_system(root: Path, *, tell: "Reporter") -> Iterator[DemoSystem]:
    """Start everything, in the order a user would, and stop everything at the end."""
    tell("starting etcd, API server, controller manager, scheduler, KWOK and Prometheus")
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS)) as rig:
        rig.add_nodes(NODE_COUNT)
        engines_url = start_engines(rig)
        rig.configure_prometheus(http_sd_url=f"{engines_url}/sd")
        tell(f"helm install servingslo {CHART}")
        install_chart(rig, root)
        tell(
            f"kubectl apply -f {EXAMPLE}, with a release window of {STABILIZATION_SECONDS} s: "
            "by default it is 300 s in the first five minutes"
        )
        _apply_workload(rig, root)
        resource = _apply_resource(rig, root)
        tell("starting the operator with its ServiceAccount's token")
        port = free_port()
        operator = start_operator(rig, health_port=port)
        rig.configure_prometheus(static_targets={"operator": [f"127.0.0.1:{port}"]})
        yield DemoSystem(
            rig=rig,
            engines_url=engines_url,
            operator=operator,
            resource=resource,
            started_seconds=time.monotonic(),
        )


class Reporter:
    """Says what happens, in plain lines."""

    def __call__(self, text: str) -> None:
        """Print one line at once."""
        print(f"==> {text}", flush=True)


def start_engines(rig: Rig) -> str:
    """Start the host of the simulated engines; its address."""
    return _start_server(rig, "engines", "servingslo_lab.rig.simulated.engines")


def start_router(rig: Rig, *flags: str) -> str:
    """Start the router of prefill and decode engines; its address."""
    module = "servingslo_lab.rig.simulated.prefill_decode_router"
    return _start_server(rig, "router", module, *flags)


def _start_server(rig: Rig, name: str, module: str, *flags: str) -> str:
    """Start a module that prints `NAME at ADDRESS` once it listens; the address."""
    kubeconfig = f"--kubeconfig={rig.admin_kubeconfig}"
    process = rig.run_process(name, [sys.executable, "-m", module, kubeconfig, *flags])
    log = rig.work_dir / "logs" / f"{name}.log"

    def address() -> str | None:
        lines = log.read_text().splitlines() if log.exists() else []
        return next((line.split()[-1] for line in lines if line.startswith(f"{name} at")), None)

    rig.wait_for(lambda: address() is not None, what=f"{process.name} listens")
    found = address()
    if found is None:
        raise RigError(f"the log of {name} has no address")
    return found


def start_clients(
    rig: Rig, name: str, plan: Mapping[str, Any], program: str = "http_clients"
) -> tuple[ManagedProcess, Path]:
    """Start HTTP clients by their plan; they, and where their records go.

    program: `http_clients` send a trace, `job_clients` do a job.
    """
    path = rig.work_dir / f"clients-{name}.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    records = rig.work_dir / f"records-{name}.jsonl"
    command = [sys.executable, "-m", f"servingslo_lab.rig.simulated.{program}"]
    process = rig.run_process(
        f"clients-{name}", [*command, f"--plan={path}", f"--records={records}"]
    )
    return process, records


def install_chart(rig: Rig, root: Path, *settings: str) -> None:
    """Install everything of the chart but the running operator. settings: further Helm values."""
    rig.helm(
        "install",
        "servingslo",
        str(root / CHART),
        f"--namespace={OPERATOR_NAMESPACE}",
        "--create-namespace",
        # The operator runs as a process of this machine, with the chart's ServiceAccount.
        "--set=replicaCount=0",
        f"--set=prometheus.url={rig.prometheus_url}",
        *(f"--set={setting}" for setting in settings),
    )


def _apply_workload(rig: Rig, root: Path) -> None:
    documents = yaml.safe_load_all((root / EXAMPLE / "deployment.yaml").read_text())
    namespace, deployment = documents
    rig.create_namespace(namespace["metadata"]["name"])
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    where, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
    apps.create_namespaced_deployment(where, deployment)
    rig.wait_for(
        lambda: (
            apps.read_namespaced_deployment(name, where).status.ready_replicas
            == deployment["spec"]["replicas"]
        ),
        what=f"deployment {where}/{name} ready",
        timeout_seconds=_READY_TIMEOUT_SECONDS,
    )


def _apply_resource(rig: Rig, root: Path) -> Mapping[str, Any]:
    resource: dict[str, Any] = yaml.safe_load((root / EXAMPLE / "servingslo.yaml").read_text())
    window = {"stabilizationWindowSeconds": STABILIZATION_SECONDS}
    resource["spec"]["behavior"] = {"scaleDown": window}
    kubernetes.client.CustomObjectsApi(rig.api_client()).create_namespaced_custom_object(
        _GROUP, _VERSION, resource["metadata"]["namespace"], _PLURAL, resource
    )
    return resource


def start_operator(rig: Rig, *flags: str, health_port: int = 0) -> ManagedProcess:
    """Start the operator as a process with the rights of the chart's ServiceAccount.

    health_port: of its metrics; 0 picks a free one.
    """
    kubeconfig = rig.kubeconfig_for_service_account(OPERATOR_NAMESPACE, SERVICE_ACCOUNT)
    return rig.run_process(
        "operator",
        [
            sys.executable,
            "-m",
            "servingslo.cli",
            "run",
            f"--prometheus-url={rig.prometheus_url}",
            f"--tick-seconds={TICK_SECONDS}",
            f"--health-port={health_port}",
            *flags,
        ],
        environment={"KUBECONFIG": str(kubeconfig)},
    )


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_SECONDS) as answer:  # noqa: S310
        return json.loads(answer.read())


def _post(url: str, document: Mapping[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310  a loopback address that the rig gave
        url,
        data=json.dumps(document, default=str).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_TIMEOUT_SECONDS):  # noqa: S310
            pass
    except urllib.error.HTTPError as error:
        raise RigError(f"{url}: {error.read().decode(errors='replace')}") from error


def _clock_ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")
