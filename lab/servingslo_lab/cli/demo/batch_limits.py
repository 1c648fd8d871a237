"""`servingslo demo --scenario batch-limits`: limits too low, too high, and a change that harms.

Three fleets of fixed size on one control plane, behind a real Envoy each. The operator finds
better limits for all of them, tries them in one pod each, and is to be right about every one.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes
import numpy as np
import yaml

from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.demo.limits_verdict import CHECKED, LimitsFigures, missed, shares_of, table
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
from servingslo_lab.rig.gateways.envoy_front import EnvoyFront
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.simulated.http_clients import read_records
from servingslo_lab.rig.simulated.uneven_law import UNEVEN_ANNOTATION

WORKLOAD = "llama-chat"
REPLICAS = 3
NODE_COUNT = 3
FULL_MINUTES = 12.0
# As `kubectl` shows it: the operator's record of limits that one pod has on trial.
CANARY_ANNOTATION = "servingslo.dev/batch-limits"
# Traffic before anybody asks for an objective: what the limits from before do.
UNTOUCHED_SECONDS = 100.0
# What engines do that no affine law says: no two steps are alike.
UNEVEN = "slowness=1.05,jitter=0.1"
# A new pod finds its place, and what waited for it is served, before it is judged by clients.
SETTLED_SECONDS = 45.0
STARTED_SECONDS = 20.0
LONGEST_PROMPT_TOKENS = 8000
CLIENT_TIMEOUT_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_TELL_SECONDS = 10.0
_READY_SECONDS = 120.0
_GRACE_SECONDS = 2 * CLIENT_TIMEOUT_SECONDS
_UNDER_WAY = {"BatchingCanaryStarted", "BatchingCanaryHeld"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A fleet: its limits, its law, what is asked of it. Lengths: medians, lognormal."""

    name: str
    max_num_seqs: int
    max_num_batched_tokens: int
    rate_per_second: float
    prompt_tokens: float
    output_tokens: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    uneven: str = UNEVEN
    bad: bool = False

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Percentile and threshold of each."""
        return tuple(
            Objective(metric=metric, percentile=percentile, threshold_seconds=seconds)
            for metric, (percentile, seconds) in (
                (LatencyMetric.TTFT, self.ttft),
                (LatencyMetric.TPOT, self.tpot),
            )
        )


SETTINGS = (
    # Four at once cannot serve seven requests a second; their engines stand idle meanwhile.
    Setting(
        name="too-few", max_num_seqs=4, max_num_batched_tokens=2048, rate_per_second=7.0,
        prompt_tokens=600, output_tokens=120, ttft=(95, 1.0), tpot=(95, 0.08),
    ),
    # A step that takes in two long prompts at once makes whoever decodes beside them wait.
    Setting(
        name="too-many", max_num_seqs=64, max_num_batched_tokens=16384, rate_per_second=3.5,
        prompt_tokens=3000, output_tokens=12, ttft=(95, 3.0), tpot=(99, 0.1),
    ),
    # As the first, on engines whose steps are twenty times as long beyond four sequences.
    Setting(
        name="harm", max_num_seqs=4, max_num_batched_tokens=2048, rate_per_second=7.0,
        prompt_tokens=600, output_tokens=120, ttft=(95, 1.0), tpot=(95, 0.08),
        uneven=f"{UNEVEN},above=4,step=20", bad=True,
    ),
)  # fmt: skip


@dataclass(slots=True)
class Fleet:
    """One of the fleets while traffic is on it; times are seconds of that traffic."""

    setting: Setting
    front: EnvoyFront
    first: Mapping[str, Any]
    clients: ManagedProcess | None = None
    records: Path = Path()
    began: float | None = None
    ended: float | None = None
    settled: float | None = None
    most_new_pods: int = 0
    replicas: list[int] = field(default_factory=list)


def run_limits(root: Path, *, minutes: float, seed: int, out: Path, tell: Reporter) -> str:
    """Run it and return the figures. Raises: RigError where something is missed at full length."""
    seconds = minutes * SECONDS_PER_MINUTE
    with _system(root, tell) as (rig, fleets):
        tell(f"{minutes:g} minutes of traffic on three fleets of {REPLICAS} replicas each")
        for fleet in fleets:
            _begin(rig, fleet, seconds, seed)
        _watch(rig, fleets, seconds, tell)
        figures = [_figures(rig, fleet, seconds) for fleet in fleets]
        out.mkdir(parents=True, exist_ok=True)
        for fleet in fleets:
            copy = out / f"records-{fleet.setting.name}.jsonl"
            copy.write_bytes(fleet.records.read_bytes())
    text = table(figures)
    short = [one for figure in figures for one in missed(figure)]
    return concluded(
        text, short, CHECKED, full=minutes >= FULL_MINUTES, file=out / "batch-limits.txt"
    )


@contextmanager
def _system(root: Path, tell: Reporter) -> Iterator[tuple[Rig, Sequence[Fleet]]]:
    tell("starting the control plane, KWOK and Prometheus")
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS)) as rig:
        rig.add_nodes(NODE_COUNT)
        rig.configure_prometheus(http_sd_url=f"{start_engines(rig)}/sd")
        tell("helm install servingslo, which may patch pod templates here")
        install_chart(rig, root, "batching.apply.enabled=true")
        tell("three fleets, each behind a Gateway: real Envoy, configured by Envoy Gateway's egctl")
        fleets = [_fleet(rig, root, setting) for setting in SETTINGS]
        for fleet in fleets:
            fleet.front.start()
        tell("starting the operator with its ServiceAccount's token")
        start_operator(rig, "--batching-apply=true")
        yield rig, fleets


def _fleet(rig: Rig, root: Path, setting: Setting) -> Fleet:
    namespace = rig.create_namespace(f"limits-{setting.name}")
    _, deployment = yaml.safe_load_all((root / EXAMPLE / "deployment.yaml").read_text())
    deployment["metadata"]["namespace"] = namespace
    deployment["spec"]["replicas"] = REPLICAS
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"][UNEVEN_ANNOTATION] = setting.uneven
    template["spec"]["containers"][0]["args"] += [
        f"--max-num-seqs={setting.max_num_seqs}",
        f"--max-num-batched-tokens={setting.max_num_batched_tokens}",
    ]
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    apps.create_namespaced_deployment(namespace, deployment)
    front = EnvoyFront(rig, namespace)
    front.create(WORKLOAD)
    fleet = Fleet(setting=setting, front=front, first={})
    rig.wait_for(
        lambda: _read(rig, fleet)["status"].get("readyReplicas") == REPLICAS,
        what=f"the fleet of {namespace} is ready",
        timeout_seconds=_READY_SECONDS,
    )
    fleet.first = _spec(_read(rig, fleet))
    return fleet


def _ask(rig: Rig, fleet: Fleet) -> None:
    """Create the fleet's ServingSLO."""
    objectives = [
        {
            "metric": o.metric.value,
            "percentile": o.percentile,
            "threshold": f"{1000 * o.threshold_seconds:.0f}ms",
        }
        for o in fleet.setting.objectives
    ]
    slo = {
        "apiVersion": "servingslo.dev/v1beta1",
        "kind": "ServingSLO",
        "metadata": {"name": WORKLOAD},
        "spec": {
            "targetRef": {"kind": "Deployment", "name": WORKLOAD},
            "objectives": objectives,
            "replicas": {"min": REPLICAS, "max": REPLICAS},
            "batching": {"mode": "Auto"},
        },
    }
    kubernetes.client.CustomObjectsApi(rig.api_client()).create_namespaced_custom_object(
        "servingslo.dev", "v1beta1", fleet.front.namespace, "servingslos", slo
    )


def _begin(rig: Rig, fleet: Fleet, seconds: float, seed: int) -> None:
    setting = fleet.setting
    trace = rig.work_dir / f"trace-{setting.name}.csv"
    trace.write_text(_trace(setting, seconds, seed), encoding="utf-8")
    plan = {
        "url": fleet.front.url,
        "timeout_seconds": CLIENT_TIMEOUT_SECONDS,
        "traffic": {
            "name": setting.name, "namespace": fleet.front.namespace, "selector": {},
            "trace": str(trace), "duration_seconds": seconds, "seed": seed,
        },
    }  # fmt: skip
    fleet.clients, fleet.records = start_clients(rig, setting.name, plan)


def _trace(setting: Setting, seconds: float, seed: int) -> str:
    """Poisson arrivals with lognormal lengths, as CSV."""
    random = np.random.default_rng(seed)
    count = int(setting.rate_per_second * seconds)
    times = np.cumsum(random.exponential(1.0 / setting.rate_per_second, count))
    prompts = np.minimum(
        random.lognormal(np.log(setting.prompt_tokens), 1.0, count), LONGEST_PROMPT_TOKENS
    )
    outputs = np.maximum(random.lognormal(np.log(setting.output_tokens), 0.8, count), 1)
    lines = [
        f"{at:.4f},{max(int(prompt), 1)},{int(output)}"
        for at, prompt, output in zip(times, prompts, outputs, strict=True)
    ]
    return "\n".join(["arrival_seconds,prompt_tokens,output_tokens", *lines]) + "\n"


def _watch(rig: Rig, fleets: Sequence[Fleet], seconds: float, tell: Reporter) -> None:
    """Read the fleets until all clients are done. Raises: RigError when they are not."""
    began, told, asked = time.monotonic(), 0.0, False
    while any(fleet.clients is not None and fleet.clients.running for fleet in fleets):
        now = time.monotonic() - began
        if now > seconds + _GRACE_SECONDS:
            raise RigError("batch-limits: clients did not end")
        if not asked and now >= UNTOUCHED_SECONDS:
            tell("kubectl apply: a ServingSLO with batching.mode Auto for each")
            for fleet in fleets:
                _ask(rig, fleet)
            asked = True
        words = [_look(rig, fleet, now) for fleet in fleets]
        if now - told >= _TELL_SECONDS:
            print(f"{now:6.1f}s {'   '.join(words)}", flush=True)
            told = now
        time.sleep(_LOOK_SECONDS)


def _look(rig: Rig, fleet: Fleet, now: float) -> str:
    """One look at a fleet, in words."""
    item = _read(rig, fleet)
    status: Mapping[str, Any] = item["status"]
    new, ready = status.get("updatedReplicas") or 0, status.get("readyReplicas") or 0
    fleet.replicas.append(item["spec"]["replicas"])
    if _stands(item):
        fleet.began = now if fleet.began is None else fleet.began
        seen = (status.get("observedGeneration") or 0) >= item["metadata"]["generation"]
        # Before its controller has seen the new template all pods are of the newest.
        if seen and new < REPLICAS:
            fleet.most_new_pods = max(fleet.most_new_pods, new)
        words = f"{new} of {ready} pods with other limits"
    else:
        if fleet.began is not None and fleet.ended is None:
            fleet.ended = now
        whole = (new, ready, status.get("replicas")) == (REPLICAS, REPLICAS, REPLICAS)
        if fleet.ended is not None and fleet.settled is None and whole:
            fleet.settled = now
        words = f"{ready} pods"
    return f"{fleet.setting.name}: {words}, {_limits(item['spec'])}"


def _read(rig: Rig, fleet: Fleet) -> Mapping[str, Any]:
    client = rig.api_client()
    apps = kubernetes.client.AppsV1Api(client)
    found = apps.read_namespaced_deployment(WORKLOAD, fleet.front.namespace)
    item: Mapping[str, Any] = client.sanitize_for_serialization(found)
    return item


def _stands(item: Mapping[str, Any]) -> bool:
    text = (item["metadata"].get("annotations") or {}).get(CANARY_ANNOTATION, "{}")
    return "since_seconds" in json.loads(text)


def _spec(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in item["spec"].items() if key != "replicas"}


def _limits(spec: Mapping[str, Any]) -> str:
    """The limits in force, of each flag the last."""
    args: Sequence[str] = spec["template"]["spec"]["containers"][0]["args"]
    flags = dict(word.split("=", 1) for word in args if word.startswith("--max-num-"))
    return f"{flags['--max-num-seqs']} / {flags['--max-num-batched-tokens']}"


def _figures(rig: Rig, fleet: Fleet, seconds: float) -> LimitsFigures:
    setting, records = fleet.setting, read_records(fleet.records)
    item = _read(rig, fleet)
    settled = None if fleet.settled is None else fleet.settled + SETTLED_SECONDS
    return LimitsFigures(
        name=setting.name,
        objectives=setting.objectives,
        bad=setting.bad,
        ended=_ended(rig, fleet),
        limits_before=_limits(fleet.first),
        limits_after=_limits(item["spec"]),
        same_template=_spec(item) == fleet.first,
        most_new_pods=fleet.most_new_pods,
        replicas=tuple(fleet.replicas),
        before=None
        if fleet.began is None
        else shares_of(records, setting.objectives, STARTED_SECONDS, fleet.began),
        after=None if settled is None else shares_of(records, setting.objectives, settled, seconds),
    )


def _ended(rig: Rig, fleet: Fleet) -> str:
    """The reason of the last change of the limits, by the operator's log; '' without an end."""
    log = (rig.work_dir / "logs" / "operator.log").read_text(encoding="utf-8")
    wanted = (" changed ", f"namespace={fleet.front.namespace} ", "knob=batch-limits", " outcome=")
    lines = [line for line in log.splitlines() if all(word in line for word in wanted)]
    reasons = [line.partition(" reason=")[2].split()[0] for line in lines]
    return reasons[-1] if reasons and reasons[-1] not in _UNDER_WAY else ""
