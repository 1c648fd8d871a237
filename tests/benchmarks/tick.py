"""What a tick of many resources costs the operator, part by part, without a cluster.

    python -m tests.benchmarks.tick --resources 300 [--ticks 24] [--counted 8]

The operator's own reader, inventory, planner, reporter and loop run in this process. Another
process answers as Prometheus would (`tick_answers`); the API server is lists in memory, so requests
to it and kopf cost nothing here. Time is virtual: ticks follow each other at once.
"""

import argparse
import asyncio
import json
import resource as usage
import signal
import subprocess
import sys
import time
import tracemalloc
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from types import FrameType
from typing import Any

from tests.benchmarks.tick_answers import EPOCH_SECONDS, TICK_SECONDS, Workload, workloads_of
from tests.integration.manifests import slo_spec, workload

import servingslo
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.resources import ResourceRecord, ResourceRef
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.controller.actuators.catalogue import ACTUATORS
from servingslo.controller.actuators.means import Means
from servingslo.controller.adapters import Adapters
from servingslo.controller.loop import Controller
from servingslo.controller.reconciler import Reconciler
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import Registry
from servingslo.controller.reporting.reporter import Reporter
from servingslo.controller.undoing import Undoing
from servingslo.policy.inputs import Limits
from servingslo.policy.ports import ClusterMetrics

_PACKAGE = Path(servingslo.__file__).parent
_SAMPLE_SECONDS = 0.002
_MOST_PAUSES = 5000
# The innermost frame of these files names the part; whatever they call belongs to it.
PARTS = {
    "adapters/prometheus/client.py": "queries",
    "parsing.py": "parsing",
    "adapters/prometheus/reading": "assembly",
    "adapters/prometheus/gateways.py": "assembly",
    "adapters/kubernetes": "view of the cluster",
    "controller/join.py": "join",
    "estimation": "estimate",
    "policy": "plan",
    "explain": "explain",
    "adapters/metrics_export.py": "explain",
    "controller/reporting": "status",
    "api": "status",
    "controller": "loop",
}


class _Parts:
    """Counts by part where CPU time is spent, by a timer of CPU time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.places: Counter[str] = Counter()

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample while the block runs."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_SECONDS, _SAMPLE_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        self.counts[_part(frame) or "other"] += 1
        self.places[_place(frame)] += 1


def _part(frame: FrameType | None) -> str | None:
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(_PACKAGE)):
            inside = name[len(str(_PACKAGE)) + 1 :]
            for start, part in PARTS.items():
                if inside.startswith(start):
                    return part
        frame = frame.f_back
    return None


def _place(frame: FrameType | None) -> str:
    while frame is not None and not frame.f_code.co_filename.startswith(str(_PACKAGE)):
        frame = frame.f_back
    if frame is None:
        return "?"
    inside = frame.f_code.co_filename[len(str(_PACKAGE)) + 1 :]
    return f"{inside}:{frame.f_code.co_qualname}"


@dataclass
class _Clock:
    now: float = 0.0

    def now_seconds(self) -> float:
        return EPOCH_SECONDS + self.now

    def monotonic(self) -> float:
        return EPOCH_SECONDS + self.now


class _ListedCluster:
    """An API server of lists that never change."""

    def __init__(self, workloads: list[Workload]) -> None:
        self.writes = 0
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH_SECONDS - 7200.0))
        self._lists: dict[str, list[Mapping[str, Any]]] = {
            "/apis/apps/v1/deployments": [_deployment(one, created) for one in workloads],
            "/apis/apps/v1/replicasets": [_replica_set(one, created) for one in workloads],
            "/api/v1/pods": [_pod(one, name, created) for one in workloads for name in one.pods],
        }

    async def get(self, path: str, _query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        if path == "/apis/apps/v1":
            names = ("deployments", "deployments/scale")
            return {"resources": [{"name": name, "kind": "Deployment"} for name in names]}
        return {"items": self._lists.get(path, []), "metadata": {"resourceVersion": "1"}}

    @asynccontextmanager
    async def watch(self, _path: str, _query: Mapping[str, str]) -> AsyncIterator[Any]:
        async def nothing() -> AsyncIterator[Mapping[str, Any]]:
            await asyncio.Event().wait()
            yield {}

        yield nothing()

    async def patch(self, *_: Any) -> Mapping[str, Any]:
        self.writes += 1
        return {"metadata": {}}


def _metadata(one: Workload, name: str, created: str, owner: str | None) -> dict[str, Any]:
    owners = [{"controller": True, "uid": owner, "kind": "x", "name": "x"}] if owner else []
    return {
        "namespace": one.namespace,
        "name": name,
        "uid": f"uid-{name}",
        "creationTimestamp": created,
        "resourceVersion": "1",
        "labels": {"app": one.name, "pod-template-hash": "7d9f8b6c54"},
        "ownerReferences": owners,
    }


def _deployment(one: Workload, created: str) -> dict[str, Any]:
    made = workload(one.name, replicas=one.replicas)
    count = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), one.replicas)
    return {
        **made,
        "metadata": _metadata(one, one.name, created, None) | {"generation": 1},
        "status": {**count, "availableReplicas": one.replicas, "observedGeneration": 1},
    }


def _replica_set(one: Workload, created: str) -> dict[str, Any]:
    name = f"{one.name}-7d9f8b6c54"
    return {
        "metadata": _metadata(one, name, created, f"uid-{one.name}"),
        "spec": {"replicas": one.replicas},
    }


def _pod(one: Workload, name: str, created: str) -> dict[str, Any]:
    template = workload(one.name, replicas=1)["spec"]["template"]
    true = {"status": "True", "lastTransitionTime": created}
    started = {"running": {"startedAt": created}}
    return {
        "metadata": _metadata(one, name, created, f"uid-{one.name}-7d9f8b6c54"),
        "spec": {**template["spec"], "nodeName": "node"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": kind, **true} for kind in ("PodScheduled", "Ready")],
            "containerStatuses": [
                {"name": "vllm", "ready": True, "restartCount": 0, "state": started}
            ],
        },
    }


@dataclass
class _Metrics:
    """The reader without its thread: a timer of CPU time interrupts the main thread alone."""

    reader: PrometheusReader

    async def read(self, _pods: Collection[str] | None = None) -> ClusterMetrics:
        return self.reader._read()


@dataclass
class _Statuses:
    """The ServingSLOs and their statuses. bytes_written: of status patches."""

    records: list[ResourceRecord]
    writes: int = 0
    bytes_written: int = 0

    async def read_all(self) -> list[ResourceRecord]:
        return self.records

    async def read(self, ref: ResourceRef) -> ResourceRecord:
        return next(one for one in self.records if one.ref == ref)

    async def patch_status(self, _ref: ResourceRef, changed: Mapping[str, Any]) -> None:
        self.writes += 1
        self.bytes_written += len(json.dumps(changed, default=str))


@dataclass
class _Events:
    posted: int = 0

    async def post(self, *_: Any) -> None:
        self.posted += 1

    def forget(self, _ref: ResourceRef) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured; seconds are of CPU. shares: of each part, in seconds of a tick."""

    resources: int
    pods: int
    tick_median_seconds: float
    tick_p99_seconds: float
    first_tick_seconds: float
    milliseconds_each: float
    resident_mebibytes: float
    queries_a_tick: float
    writes_a_tick: float
    trusted: int
    orders: int
    parts: dict[str, float] = field(default_factory=dict)


def _operator(clock: _Clock, url: str, workloads: list[Workload], cluster: Any, turns: int) -> Any:
    inventory = Inventory(cluster)
    discovery = Discovery(cluster)
    views = KubernetesWorkloads(cluster, discovery, inventory, NoConfigMaps())
    means = Means(client=cluster, discovery=discovery, workloads=views)
    records = [
        ResourceRecord(
            ref=ResourceRef(namespace=one.namespace, name=one.name, uid=f"slo-{one.name}"),
            generation=1,
            created_seconds=EPOCH_SECONDS,
            deleting=False,
            spec=slo_spec(
                one.name,
                {"replicas": {"min": one.replicas, "max": 3 * one.replicas}, "behavior": {}},
            ),
            status={},
        )
        for one in workloads
    ]
    reader = PrometheusReader(
        PrometheusConfig(
            url=url,
            timeout_seconds=60.0,
            reading_timeout_seconds=300.0,
            histogram_engines_each_tick=-(-sum(one.replicas for one in workloads) // turns),
        ),
        monotonic=clock.monotonic,
        clock=clock,
    )
    adapters = Adapters(
        clock=clock,
        metrics=_Metrics(reader),
        workloads=views,
        actuators=tuple(row(means) for row in ACTUATORS),
        resources=_Statuses(records),  # type: ignore[arg-type]
        events=_Events(),
        exporter=OperatorMetrics(),
    )
    registry, limits, reporter = Registry(), Limits(), Reporter(adapters)
    registry.replace_all(records)
    controller = Controller(
        adapters=adapters,
        registry=registry,
        reconciler=Reconciler(
            adapters=adapters,
            limits=limits,
            recorder=Recorder(None),
            reporter=reporter,
            registry=registry,
        ),
        undoing=Undoing(adapters=adapters, registry=registry, limits=limits, reporter=reporter),
        tick_seconds=TICK_SECONDS,
    )
    return controller, inventory


async def measure(options: argparse.Namespace, url: str) -> Figures:
    """Run the ticks; only the last of them are counted and sampled."""
    clock, workloads = _Clock(), workloads_of(options.resources)
    cluster = _ListedCluster(workloads)
    controller, inventory = _operator(clock, url, workloads, cluster, options.turns)
    await inventory.start()
    reporter = controller.reconciler.reporter
    writing = asyncio.create_task(reporter.write_behind(0.05))
    parts, seconds, writes = _Parts(), [], [0]
    queries = _counted_queries(controller.adapters.metrics.reader)
    for tick in range(options.ticks):
        await asyncio.to_thread(_get, f"{url}/tick")
        clock.now += TICK_SECONDS
        if options.memory and tick == 1:
            tracemalloc.start(12)
        before = time.process_time()
        if tick >= options.ticks - options.counted and not options.memory:
            with parts.sampled():
                await _one(controller)
        else:
            await _one(controller)
        seconds.append(time.process_time() - before)
        writes.append(controller.adapters.resources.writes)
        if options.verbose:
            sys.stderr.write(f"{tick} {seconds[-1]:.2f} s, {writes[-1]} writes\n")
    writing.cancel()
    await inventory.stop()
    if options.memory:
        _tell_memory()
    controller.adapters.metrics.reader.close()
    page = controller.adapters.exporter.render().decode()
    counted = seconds[-options.counted :]
    total = sum(parts.counts.values()) or 1
    for place, count in parts.places.most_common(options.places):
        sys.stderr.write(f"{count / total:6.1%} {place}\n")
    return Figures(
        resources=options.resources,
        pods=sum(one.replicas for one in workloads),
        tick_median_seconds=median(counted),
        tick_p99_seconds=quantiles(counted, n=100, method="inclusive")[-1],
        first_tick_seconds=seconds[0],
        milliseconds_each=1000.0 * median(counted) / options.resources,
        resident_mebibytes=usage.getrusage(usage.RUSAGE_SELF).ru_maxrss / 1024.0,
        queries_a_tick=queries[0] / options.ticks,
        writes_a_tick=(writes[-1] - writes[-1 - options.counted]) / options.counted,
        trusted=sum(
            line.startswith("servingslo_model_trusted") and line.endswith(" 1.0")
            for line in page.splitlines()
        ),
        orders=cluster.writes,
        parts={name: median(counted) * count / total for name, count in parts.counts.most_common()},
    )


async def _one(controller: Controller) -> None:
    """A tick and the statuses after it."""
    await controller._tick(tuple(controller.registry.resources))
    controller._spare_collector()
    queue = controller.reconciler.reporter._statuses._queue
    for _ in range(_MOST_PAUSES):
        if queue is None or not len(queue):
            return
        await asyncio.sleep(0.002)


def _counted_queries(reader: Any) -> list[int]:
    count, ask = [0], reader._client.query

    def query(*args: Any, **named: Any) -> Any:
        count[0] += 1
        return ask(*args, **named)

    reader._client.query = query
    return count


def _tell_memory() -> None:
    found = tracemalloc.take_snapshot()
    for stat in found.statistics("lineno")[:30]:
        sys.stderr.write(f"{stat}\n")


def _get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - a loopback address
        answer.read()


def main() -> None:
    """Measure once, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resources", type=int, default=300)
    parser.add_argument("--ticks", type=int, default=24)
    parser.add_argument("--counted", type=int, default=8, help="ticks at the end")
    parser.add_argument("--turns", type=int, default=8, help="of histograms, as for 4,000 engines")
    parser.add_argument("--scrape-ticks", type=int, default=1, help="ticks between two scrapes")
    parser.add_argument("--memory", action="store_true", help="trace memory instead of time")
    parser.add_argument("--places", type=int, default=0, help="functions that are printed")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    answers = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.benchmarks.tick_answers",
            str(options.resources),
            str(options.scrape_ticks),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert answers.stdout is not None
    try:
        url = f"http://127.0.0.1:{answers.stdout.readline().strip()}"
        figures = asyncio.run(measure(options, url))
    finally:
        answers.terminate()
        answers.wait()
    rounded = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in {
            **{name: getattr(figures, name) for name in Figures.__slots__},
        }.items()
    }
    sys.stdout.write(f"{json.dumps(rounded)}\n")


if __name__ == "__main__":
    main()
