"""`servingslo demo --scenario classes`: chat and a background job, with classes and without.

Three equal fleets on one control plane, each behind a real Envoy, at the same time: chat alone,
chat and the job without classes (one route, one bound), and with classes (a route and a bound
each). The operator scales all three and writes the bounds; clients record what they see.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes
import numpy as np
import yaml

from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.demo.classes.least_time import JobTraffic, least_seconds, pace_ratio
from servingslo_lab.cli.demo.classes.verdict import (
    CHECKED,
    Arm,
    Look,
    draw,
    figures_of,
    missed,
    nothing_shown,
    pace_line,
    table,
    tpot_seconds,
    typical_count,
)
from servingslo_lab.cli.demo.report import concluded
from servingslo_lab.cli.demo.system import (
    EXAMPLE,
    SCRAPE_INTERVAL_SECONDS,
    Reporter,
    install_chart,
    start_clients,
    start_engines,
    start_operator,
)
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.gateways.envoy_front import EnvoyFront, policy_manifest
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.simulated.http_clients import read_records
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.workloads import constant, generated, uniform_lengths

WORKLOAD = CHAT_ROUTE = "llama-chat"
JOB_ROUTE = "llama-job"
CLASS_HEADER = ("x-class", "job")
FULL_MINUTES = 32.0
CHAT_PER_SECOND = 6.0
# Uniform lengths in tokens, and objectives, as in the benchmark of classes
# (tests/benchmarks/classes.py).
CHAT_LENGTHS = uniform_lengths((100, 2000), (50, 300))
JOB_LENGTHS = uniform_lengths((200, 2000), (100, 400))
OBJECTIVES = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0),
    Objective(metric=LatencyMetric.TPOT, percentile=99.0, threshold_seconds=0.05),
)
JOB_REQUESTS, JOB_WORKERS, JOB_PAUSE_SECONDS = 2000, 128, 0.5
# The law is trusted after some minutes; then the job begins.
JOB_BEGIN_RATIO = 0.25
REPLICAS = {"min": 2, "max": 8}
NODE_COUNT = 3
CLIENT_TIMEOUT_SECONDS = 60.0
PRIORITIES = {"chat": 10, "job": -10}
_LOOK_SECONDS, _TELL_SECONDS = 1.0, 10.0
_READY_SECONDS = 120.0
_KIND = "BackendTrafficPolicy"
_MANAGED = {"servingslo.dev/managed": "true"}
_SLO = ("servingslo.dev", "v1beta1")


@dataclass(slots=True)
class Fleet:
    """One of the fleets while its clients run."""

    arm: Arm
    front: EnvoyFront
    clients: list[ManagedProcess] = field(default_factory=list)
    records: dict[str, Path] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)

    @property
    def routes(self) -> tuple[str, ...]:
        """Its HTTPRoutes, and the policies of the same names."""
        return (CHAT_ROUTE, JOB_ROUTE) if self.arm is Arm.ON else (CHAT_ROUTE,)


def run_classes(root: Path, *, minutes: float, seed: int, out: Path, tell: Reporter) -> str:
    """Run it and return the figures. Raises: RigError if a promise is missed at full length."""
    seconds = minutes * SECONDS_PER_MINUTE
    chat, job = requests_of(seconds, seed, round(JOB_REQUESTS * min(minutes / FULL_MINUTES, 1.0)))
    with _running(root, tell) as (rig, fleets):
        tell(f"{minutes:g} minutes of chat on all three, and a job of {len(job)} requests on two")
        for fleet in fleets:
            _start_clients(rig, fleet, chat, job, seed)
        _watch(rig, fleets, seconds)
        log = (rig.work_dir / "logs" / "operator.log").read_text(encoding="utf-8")
        records = {
            fleet.arm: {kind: read_records(path) for kind, path in fleet.records.items()}
            for fleet in fleets
        }
    begin = JOB_BEGIN_RATIO * seconds
    alone = next(fleet for fleet in fleets if fleet.arm is Arm.ALONE)
    tell("the least time of the job, by simulation")
    traffic = JobTraffic(
        chat=chat,
        job=job,
        workers=JOB_WORKERS,
        begin_seconds=begin,
        pause_seconds=JOB_PAUSE_SECONDS,
    )
    count = typical_count(alone.looks, begin, seconds)
    pace = pace_ratio(chat, [*map(tpot_seconds, records[Arm.ALONE]["chat"])], count, seed)
    least = least_seconds(traffic, count, OBJECTIVES, seed, pace)
    figures = [
        figures_of(
            fleet.arm, records[fleet.arm], fleet.looks, OBJECTIVES, seconds=seconds,
            job_begin_seconds=begin, least_seconds=least,
        )
        for fleet in fleets
    ]  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    text = f"{table(figures)}\n{pace_line(pace)}"
    (out / "classes.log").write_text(log, encoding="utf-8")
    looks = {fleet.arm: fleet.looks for fleet in fleets}
    picture = draw(records, looks, OBJECTIVES, begins_seconds=begin)
    if picture is not None:
        (out / "classes.png").write_bytes(picture)
    short = (*missed(figures), *nothing_shown(figures))
    full = minutes >= FULL_MINUTES
    return concluded(text, short, CHECKED, full=full, file=out / "classes.txt")


def requests_of(seconds: float, seed: int, count: int) -> tuple[Trace, list[tuple[int, int]]]:
    """Chat's Poisson arrivals, and prompt and output tokens of so many requests of the job."""
    rng = np.random.default_rng(seed)
    chat = generated(constant(CHAT_PER_SECOND, seconds), CHAT_LENGTHS, rng)
    prompts, outputs = JOB_LENGTHS(rng, count)
    return chat, list(zip(prompts.astype(int).tolist(), outputs.astype(int).tolist(), strict=True))


@contextmanager
def _running(root: Path, tell: Reporter) -> Iterator[tuple[Rig, tuple[Fleet, ...]]]:
    tell("starting the control plane, KWOK and Prometheus")
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS)) as rig:
        rig.add_nodes(NODE_COUNT)
        rig.configure_prometheus(http_sd_url=f"{start_engines(rig)}/sd")
        tell(f"helm install servingslo, with {_KIND} among the kinds it may write")
        install_chart(rig, root, f"admission.kinds[0]={_KIND}")
        tell("three fleets, each behind a Gateway: real Envoy, configured by Envoy Gateway's egctl")
        fleets = tuple(_fleet(rig, root, arm) for arm in Arm)
        for fleet in fleets:
            fleet.front.start()
        tell("starting the operator with its ServiceAccount's token")
        start_operator(rig, "--gateway-profile=envoy-gateway", f"--admission-kind={_KIND}")
        yield rig, fleets


def _fleet(rig: Rig, root: Path, arm: Arm) -> Fleet:
    namespace = rig.create_namespace(f"classes-{arm.value}")
    text = (root / EXAMPLE / "deployment.yaml").read_text(encoding="utf-8")
    _, deployment = yaml.safe_load_all(text)
    deployment["metadata"]["namespace"] = namespace
    deployment["spec"]["replicas"] = REPLICAS["min"]
    kubernetes.client.AppsV1Api(rig.api_client()).create_namespaced_deployment(
        namespace, deployment
    )
    fleet = Fleet(arm=arm, front=EnvoyFront(rig, namespace))
    fleet.front.create(WORKLOAD)
    if arm is Arm.ON:
        fleet.front.create_route(JOB_ROUTE, WORKLOAD, CLASS_HEADER)
    for route in fleet.routes:
        fleet.front.put_policy(policy_manifest(route, route=route, labels=_MANAGED))
    kubernetes.client.CustomObjectsApi(rig.api_client()).create_namespaced_custom_object(
        *_SLO, namespace, "servingslos", resource_of(root, arm, namespace)
    )
    rig.wait_for(
        lambda: _replicas(rig, fleet)[1] == REPLICAS["min"],
        what=f"the fleet of {namespace} is ready",
        timeout_seconds=_READY_SECONDS,
    )
    return fleet


def resource_of(root: Path, arm: Arm, namespace: str) -> dict[str, Any]:
    """The example's ServingSLO behind Envoy Gateway: with classes, or with one route."""
    text = (root / EXAMPLE / "servingslo.yaml").read_text(encoding="utf-8")
    slo: dict[str, Any] = yaml.safe_load(text)
    slo["metadata"]["namespace"] = namespace
    slo["spec"]["replicas"] = dict(REPLICAS)
    slo["spec"]["objectives"] = [
        {
            "metric": one.metric.value,
            "percentile": one.percentile,
            "threshold": f"{1000.0 * one.threshold_seconds:g}ms",
        }
        for one in OBJECTIVES
    ]
    if arm is Arm.ON:
        slo["spec"]["admission"] = {"mode": "Auto"}
        slo["spec"]["classes"] = [
            {"name": "chat", "priority": PRIORITIES["chat"], "route": CHAT_ROUTE},
            {"name": "job", "priority": PRIORITIES["job"], "route": JOB_ROUTE},
        ]
    else:
        slo["spec"]["gateway"] = {"name": CHAT_ROUTE}
        slo["spec"]["admission"] = {"mode": "Auto", "via": {"kind": _KIND, "name": CHAT_ROUTE}}
    return slo


def _start_clients(
    rig: Rig, fleet: Fleet, chat: Trace, job: Sequence[tuple[int, int]], seed: int
) -> None:
    name, seconds = fleet.arm.value, chat.duration_seconds
    trace = rig.work_dir / f"chat-{name}.csv"
    write_trace(chat, trace)
    plan = {
        "url": fleet.front.url,
        "timeout_seconds": CLIENT_TIMEOUT_SECONDS,
        "traffic": {
            "name": name, "namespace": fleet.front.namespace, "selector": {},
            "trace": str(trace), "duration_seconds": seconds,
        },
    }  # fmt: skip
    process, records = start_clients(rig, name, plan)
    fleet.clients.append(process)
    fleet.records["chat"] = records
    if fleet.arm is not Arm.ALONE:
        plan = {
            "url": fleet.front.url,
            "requests": job,
            "workers": JOB_WORKERS,
            "begin_seconds": JOB_BEGIN_RATIO * seconds,
            "pause_seconds": JOB_PAUSE_SECONDS,
            "timeout_seconds": CLIENT_TIMEOUT_SECONDS,
            "headers": dict((CLASS_HEADER,)),
            "seed": seed,
        }
        process, records = start_clients(rig, f"{name}-job", plan, "job_clients")
        fleet.clients.append(process)
        fleet.records["job"] = records


def _watch(rig: Rig, fleets: Sequence[Fleet], seconds: float) -> None:
    """Look until all clients are done. Raises: RigError if they are not."""
    began, told = time.monotonic(), 0.0
    while any(process.running for fleet in fleets for process in fleet.clients):
        now = time.monotonic() - began
        if now > 2 * seconds + 2 * CLIENT_TIMEOUT_SECONDS:
            raise RigError("classes: clients did not end")
        for fleet in fleets:
            fleet.looks.append(_look(rig, fleet, now))
        if now - told >= _TELL_SECONDS:
            line = "   ".join(f"{fleet.arm.value}: {fleet.looks[-1].text}" for fleet in fleets)
            print(f"{now:6.1f}s {line}", flush=True)
            told = now
        time.sleep(_LOOK_SECONDS)


def _look(rig: Rig, fleet: Fleet, at_seconds: float) -> Look:
    ordered, ready = _replicas(rig, fleet)
    return Look(
        at_seconds=at_seconds,
        ordered=ordered,
        ready=ready,
        bounds=tuple(_bound(fleet.front, route) for route in fleet.routes),
    )


def _bound(front: EnvoyFront, policy: str) -> int | None:
    breaker = front.policy(policy)["spec"].get("circuitBreaker") or {}
    found: int | None = breaker.get("maxParallelRequests")
    return found


def _replicas(rig: Rig, fleet: Fleet) -> tuple[int, int]:
    """Ordered and ready ones."""
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    found = apps.read_namespaced_deployment(WORKLOAD, fleet.front.namespace)
    return found.spec.replicas or 0, found.status.ready_replicas or 0
