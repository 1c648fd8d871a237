"""Many workloads at constant demand, each with as many replicas as that needs, and a ServingSLO."""

import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import kubernetes
from tests.integration.manifests import slo_spec, workload
from tests.integration.operator_under_test import (
    LENGTH_SPREAD,
    Engines,
    Operator,
    steady_trace,
)

from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import http_get, wait_until

PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 500
# Of these engines and lengths one replica saturates at 1.64 requests/s, and 85 % of it is allowed:
# `servingslo size --fleet l4-small --output-variation 0.46`. The rate of c replicas lies in their
# range.
RATE_PER_REPLICA = 1.39
_SHARE_OF_LAST = 0.4
FEWEST, KINDS = 2, 5
_GPUS_PER_NODE = 400
_PER_NAMESPACE = 25
_TRACE_SECONDS = 240.0
_PROBE_SECONDS = 0.25
_TICKS = re.compile(r"^servingslo_tick_duration_seconds_(count|sum) (\S+)$", re.MULTILINE)
_SAMPLE = re.compile(
    r"^servingslo_(arrivals_per_second|model_trusted)\{(.*)\} (\S+)$", re.MULTILINE
)
_LABELS = re.compile(r'(\w+)="([^"]*)"')
_LABEL = "scale-test"


def counts_of(resources: int, pods: int) -> list[int]:
    """Replicas of each workload: two to seven, as many pods in all."""
    counts = [FEWEST + i % KINDS for i in range(resources)]
    missing = pods - sum(counts)
    assert 0 <= missing <= resources, "about four pods for each resource"
    return [count + (i < missing) for i, count in enumerate(counts)]


def rate_of(count: int) -> float:
    """Requests per second for which so many replicas are needed and no more."""
    return RATE_PER_REPLICA * (count - 1 + _SHARE_OF_LAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is told of all resources. rate_ratios: of each, what is seen over what comes."""

    resources: int
    decided: int
    trusted: int
    rate_ratios: tuple[float, ...]

    @property
    def worst_rate_error(self) -> float:
        """The greatest relative error of a rate; 1 where one is not known."""
        known = max((abs(ratio - 1.0) for ratio in self.rate_ratios), default=1.0)
        return known if len(self.rate_ratios) == self.resources else max(known, 1.0)


@dataclass
class ManyWorkloads:
    """The workloads and their traffic. changes: of the specs of the ServingSLOs."""

    rig: Rig
    engines: Engines
    resources: int
    pods: int
    folder: Path
    traffic_seconds: float = 1500.0
    changes: Mapping[str, Any] = field(default_factory=dict)
    needed: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client = self.rig.api_client()
        self.apps = kubernetes.client.AppsV1Api(client)
        self.core = kubernetes.client.CoreV1Api(client)
        self.custom = kubernetes.client.CustomObjectsApi(client)
        self.namespaces: list[str] = []

    def create(self, *, ready_within_seconds: float = 300.0) -> None:
        """Nodes, Deployments with traffic, and then the ServingSLOs."""
        self.rig.add_nodes(-(-self.pods // _GPUS_PER_NODE), gpus_per_node=_GPUS_PER_NODE)
        counts = counts_of(self.resources, self.pods)
        traces = {count: self._trace(count) for count in sorted(set(counts))}
        for i, count in enumerate(counts):
            if i % _PER_NAMESPACE == 0:
                name = f"many-{time.monotonic_ns() % 10**9}-{i // _PER_NAMESPACE}"
                self.namespaces.append(self.rig.create_namespace(name))
            self._create_workload(self.namespaces[-1], f"chat-{i}", count)
        wait_until(
            lambda: self.ready_pods() == self.pods,
            what=f"{self.pods} pods are ready",
            timeout_seconds=ready_within_seconds,
            interval_seconds=1.0,
        )
        self.begin_traffic(traces)
        self._create_slos()

    def begin_traffic(self, traces: Mapping[int, Path]) -> None:
        """Constant demand on every workload."""
        for (namespace, name), count in self.needed.items():
            plan = {
                "name": f"{namespace}-{name}",
                "namespace": namespace,
                "selector": {"app": name},
                "trace": str(traces[count]),
                "duration_seconds": self.traffic_seconds,
            }
            self.engines.send("/traffic", plan)

    def delete(self) -> None:
        """End the traffic and delete everything."""
        for namespace, name in self.needed:
            self.engines.send(f"/traffic/{namespace}-{name}", None, method="DELETE")
        for namespace in self.namespaces:
            self.rig.delete_namespace(namespace)

    def ready_pods(self) -> int:
        """Pods of all workloads that are ready."""
        return sum(item.status.ready_replicas or 0 for item in self._deployments())

    def superfluous(self) -> list[int]:
        """Replicas more than are needed, of each workload."""
        found = {
            (item.metadata.namespace, item.metadata.name): item.spec.replicas
            for item in self._deployments()
        }
        return [found[key] - count for key, count in self.needed.items()]

    def _deployments(self) -> list[kubernetes.client.V1Deployment]:
        return self.apps.list_deployment_for_all_namespaces(label_selector=_LABEL).items

    def seen(self, operator: Operator) -> Seen:
        """What the operator exports: a status is not written for every small change."""
        found: dict[str, dict[tuple[str, str], float]] = {}
        for family, labels, value in _SAMPLE.findall(operator.metrics()):
            named = dict(_LABELS.findall(labels))
            found.setdefault(family, {})[named["namespace"], named["name"]] = float(value)
        rates = found.get("arrivals_per_second", {})
        trusted = found.get("model_trusted", {})
        return Seen(
            resources=self.resources,
            decided=sum(key in trusted for key in self.needed),
            trusted=sum(trusted.get(key) == 1.0 for key in self.needed),
            rate_ratios=tuple(
                rates[key] / rate_of(count) for key, count in self.needed.items() if key in rates
            ),
        )

    def _trace(self, count: int) -> Path:
        return steady_trace(
            self.folder / f"steady-{count}.csv",
            rate=rate_of(count),
            seconds=_TRACE_SECONDS,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            spread=LENGTH_SPREAD,
        )

    def _create_workload(self, namespace: str, name: str, count: int) -> None:
        manifest = workload(name, replicas=count)
        manifest["metadata"]["labels"] = {_LABEL: "yes"}
        self.apps.create_namespaced_deployment(namespace, manifest)
        self.needed[namespace, name] = count

    def _create_slos(self) -> None:
        for (namespace, name), count in self.needed.items():
            bounds = {"min": 1, "max": 3 * count}
            spec = slo_spec(name, {"replicas": bounds, **self.changes})
            body = {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": "ServingSLO",
                "metadata": {"name": name},
                "spec": spec,
            }
            self.custom.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, body)


class Watched:
    """What an operator does while a block runs: its ticks, their CPU time, its probes, its memory.

    page_seconds: its metrics are asked for so often; a page of 500 resources takes it 0.2 s.
    """

    def __init__(self, operator: Operator, *, page_seconds: float = 1.0) -> None:
        assert operator.process is not None
        self._operator = operator
        self._page_seconds = page_seconds
        self._address = operator.metrics_address
        self._pid = operator.process.pid
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._probe, self._count)]
        self.tick_seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.probe_seconds: list[float] = []
        self.refused_probes = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    @property
    def peak_mebibytes(self) -> float:
        """The most memory that was resident since the process began."""
        return _status_of(self._pid, "VmHWM")

    @property
    def resident_mebibytes(self) -> float:
        """Memory that is resident now."""
        return _status_of(self._pid, "VmRSS")

    def _probe(self) -> None:
        while not self._ended.wait(_PROBE_SECONDS):
            began = time.monotonic()
            answer = http_get(f"http://{self._address}/healthz", timeout_seconds=15.0)
            self.probe_seconds.append(time.monotonic() - began)
            self.refused_probes += answer is None

    def _count(self) -> None:
        before, used = self._ticks(), _cpu_seconds_of(self._pid)
        while not self._ended.wait(self._page_seconds):
            after = self._ticks()
            if after is None or before is None:
                before, used = after, _cpu_seconds_of(self._pid)
                continue
            ticks = round(after[0] - before[0])
            if ticks > 0:
                now = _cpu_seconds_of(self._pid)
                self.tick_seconds += [(after[1] - before[1]) / ticks] * ticks
                self.cpu_seconds += [(now - used) / ticks] * ticks
                used = now
            before = after

    def _ticks(self) -> tuple[float, float] | None:
        page = http_get(f"http://{self._address}/metrics", timeout_seconds=15.0)
        found = dict(_TICKS.findall(page or ""))
        return (float(found["count"]), float(found["sum"])) if len(found) == 2 else None


def orders(operator: Operator) -> list[str]:
    """Lines of its log about changed replica counts."""
    return operator.log_lines(" changed ", "knob=replicas")


def _cpu_seconds_of(pid: int) -> float:
    """CPU time of a process, in user and kernel mode. Source: proc_pid_stat(5), utime and stime."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _status_of(pid: int, field_name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"{field_name}:"))
    return int(line.split()[1]) / 1024.0
