"""`servingslo demo --scenario flash-crowd`: the same crowd on two fleets, one behind a bound.

Both stand on one control plane, behind a real Envoy each, at the same time and with the same
requests. The operator writes the bound of one into its BackendTrafficPolicy; Envoy Gateway's own
translator and Envoy do the rest.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes
import yaml

from servingslo.units import SECONDS_PER_MINUTE, parse_duration_seconds
from servingslo_lab.cli.demo.crowd_verdict import (
    CHECKED,
    ArmFigures,
    figures_of,
    missed,
    not_enforced,
    table,
)
from servingslo_lab.cli.demo.report import concluded
from servingslo_lab.cli.demo.system import (
    EXAMPLE,
    SCRAPE_INTERVAL_SECONDS,
    TRACE,
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

WORKLOAD = POLICY = "llama-chat"
# The Azure hour at rest is six requests a second; the crowd is five times that, below 40.
RATE_SCALE, CROWD_FACTOR, TRACE_START_SECONDS = 1.0, 5.0, 900.0
CROWD_START_RATIO, CROWD_END_RATIO = 0.25, 0.5
FULL_MINUTES = 12.0
REPLICAS = {"min": 3, "max": 10}
NODE_COUNT = 3
CLIENT_TIMEOUT_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_READY_SECONDS = 120.0
# What is in flight at the end, and clients that wait for it.
_GRACE_SECONDS = 2 * CLIENT_TIMEOUT_SECONDS
_KIND = "BackendTrafficPolicy"
_MANAGED = {"servingslo.dev/managed": "true"}
_SLO = ("servingslo.dev", "v1beta1")


@dataclass(slots=True)
class Arm:
    """One of the two fleets while the crowd is on it."""

    name: str
    front: EnvoyFront
    clients: ManagedProcess | None = None
    records: Path = Path()
    replica_seconds: float = 0.0
    bounds: list[int] = field(default_factory=list)


def run_crowd(
    root: Path, *, minutes: float, seed: int, out: Path, reaches_envoy: bool, tell: Reporter
) -> str:
    """Run it and return the figures. Raises: RigError where it shows nothing or misses.

    Below the full length only that the bound is enforced is asked for. reaches_envoy: False is the
    negative control, in which the translator never sees the policy.
    """
    seconds = minutes * SECONDS_PER_MINUTE
    with _system(root, reaches_envoy=reaches_envoy, tell=tell) as (rig, arms):
        tell(f"{minutes:g} minutes of traffic on both, the crowd in the second quarter")
        for arm in arms:
            plan = _plan(root, arm, seconds, seed)
            arm.clients, arm.records = start_clients(rig, arm.name, plan)
        _watch(rig, arms, seconds)
        objectives = _objectives(root)
        figures = [_figures(arm, objectives) for arm in arms]
        out.mkdir(parents=True, exist_ok=True)
        for arm in arms:
            (out / f"records-{arm.name}.jsonl").write_bytes(arm.records.read_bytes())
    without, with_bound = figures
    text = table(figures)
    problem = not_enforced(with_bound)
    short = [*filter(None, (problem, *missed(without, with_bound)))]
    full = bool(problem) or minutes >= FULL_MINUTES
    return concluded(text, short, CHECKED, full=full, file=out / "flash-crowd.txt")


@contextmanager
def _system(
    root: Path, *, reaches_envoy: bool, tell: Reporter
) -> Iterator[tuple[Rig, tuple[Arm, Arm]]]:
    tell("starting the control plane, KWOK and Prometheus")
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS)) as rig:
        rig.add_nodes(NODE_COUNT)
        rig.configure_prometheus(http_sd_url=f"{start_engines(rig)}/sd")
        tell("helm install servingslo, with BackendTrafficPolicy among the kinds it may write")
        install_chart(rig, root, f"admission.kinds[0]={_KIND}")
        tell("two fleets, each behind a Gateway: real Envoy, configured by Envoy Gateway's egctl")
        arms = (_arm(rig, root, "off"), _arm(rig, root, "on"))
        for arm in arms:
            arm.front.start(with_policies=reaches_envoy)
        tell("starting the operator with its ServiceAccount's token")
        start_operator(rig, "--gateway-profile=envoy-gateway", f"--admission-kind={_KIND}")
        yield rig, arms


def _arm(rig: Rig, root: Path, name: str) -> Arm:
    namespace = rig.create_namespace(f"admission-{name}")
    _, deployment = yaml.safe_load_all((root / EXAMPLE / "deployment.yaml").read_text())
    deployment["metadata"]["namespace"] = namespace
    deployment["spec"]["replicas"] = REPLICAS["min"]
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    apps.create_namespaced_deployment(namespace, deployment)
    front = EnvoyFront(rig, namespace)
    front.create(WORKLOAD)
    front.put_policy(policy_manifest(POLICY, route=WORKLOAD, labels=_MANAGED))
    slo = yaml.safe_load((root / EXAMPLE / "servingslo.yaml").read_text())
    slo["metadata"]["namespace"] = namespace
    slo["spec"]["replicas"] = dict(REPLICAS)
    slo["spec"]["gateway"] = {"name": WORKLOAD}
    if name == "on":
        slo["spec"]["admission"] = {"mode": "Auto", "via": {"kind": _KIND, "name": POLICY}}
    kubernetes.client.CustomObjectsApi(rig.api_client()).create_namespaced_custom_object(
        *_SLO, namespace, "servingslos", slo
    )
    rig.wait_for(
        lambda: _replicas(rig, front)[1] == REPLICAS["min"],
        what=f"the fleet of {namespace} is ready",
        timeout_seconds=_READY_SECONDS,
    )
    return Arm(name=name, front=front)


def _plan(root: Path, arm: Arm, seconds: float, seed: int) -> Mapping[str, Any]:
    crowd = {
        "factor": CROWD_FACTOR,
        "start_seconds": CROWD_START_RATIO * seconds,
        "end_seconds": CROWD_END_RATIO * seconds,
    }
    return {
        "url": arm.front.url,
        "timeout_seconds": CLIENT_TIMEOUT_SECONDS,
        "traffic": {
            "name": arm.name,
            "namespace": arm.front.namespace,
            "selector": {},
            "trace": str((root / TRACE).resolve()),
            "scale": RATE_SCALE,
            "start_seconds": TRACE_START_SECONDS,
            "duration_seconds": seconds,
            "surges": [crowd],
            "seed": seed,
        },
    }


def _watch(rig: Rig, arms: tuple[Arm, Arm], seconds: float) -> None:
    """Read replicas and bounds until all clients are done. Raises: RigError when they are not."""
    began = last = time.monotonic()
    told = 0.0
    while any(arm.clients is not None and arm.clients.running for arm in arms):
        now = time.monotonic()
        if now - began > seconds + _GRACE_SECONDS:
            raise RigError("flash-crowd: clients did not end")
        line = []
        for arm in arms:
            desired, ready = _replicas(rig, arm.front)
            arm.replica_seconds += desired * (now - last)
            bound = (arm.front.policy(POLICY)["spec"].get("circuitBreaker") or {}).get(
                "maxParallelRequests"
            )
            if bound is not None and [bound] != arm.bounds[-1:]:
                arm.bounds.append(int(bound))
            line.append(f"{arm.name}: replicas {ready}/{desired} bound {bound}")
        last = now
        if now - told >= 10 * _LOOK_SECONDS:
            print(f"{now - began:6.1f}s {'   '.join(line)}", flush=True)
            told = now
        time.sleep(_LOOK_SECONDS)


def _replicas(rig: Rig, front: EnvoyFront) -> tuple[int, int]:
    """Desired and ready ones."""
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    found = apps.read_namespaced_deployment(WORKLOAD, front.namespace)
    return found.spec.replicas or 0, found.status.ready_replicas or 0


def _objectives(root: Path) -> Mapping[str, float]:
    slo = yaml.safe_load((root / EXAMPLE / "servingslo.yaml").read_text())
    return {
        one["metric"]: parse_duration_seconds(one["threshold"]) for one in slo["spec"]["objectives"]
    }


def _figures(arm: Arm, objectives: Mapping[str, float]) -> ArmFigures:
    overflows = ("upstream_rq_active_overflow", "upstream_rq_pending_overflow")
    return figures_of(
        arm.name,
        read_records(arm.records),
        ttft_seconds=objectives["ttft"],
        tpot_seconds=objectives["tpot"],
        overflows=sum(arm.front.counter(name, WORKLOAD) for name in overflows),
        unserved=arm.front.counter("upstream_cx_none_healthy", WORKLOAD),
        replica_seconds=arm.replica_seconds,
        bounds=arm.bounds,
    )
