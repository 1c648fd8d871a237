"""`servingslo demo --scenario disaggregated`: longer prompts, then longer answers, then neither.

Simulated prefill and decode engines on a real control plane, behind a router that forwards as
llm-d's sidecar does. One ServingSLO plans both pools; clients record what they see.
"""

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
import numpy as np
import yaml

from servingslo.cli.decision_document import fleet_of, last_document
from servingslo.explain.pools import fleet_lines
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.pools.decision import FleetDecision
from servingslo.units import SECONDS_PER_MINUTE, parse_duration_seconds
from servingslo_lab.cli.demo.disaggregated.verdict import (
    Look,
    Phase,
    checked,
    draw,
    figures_of,
    missed,
    table,
)
from servingslo_lab.cli.demo.report import concluded
from servingslo_lab.cli.demo.system import (
    SCRAPE_INTERVAL_SECONDS,
    Reporter,
    install_chart,
    start_clients,
    start_engines,
    start_operator,
    start_router,
)
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.simulated.engine_pods import ENGINE_LABEL, KIND_ANNOTATION
from servingslo_lab.rig.simulated.http_clients import read_records
from servingslo_lab.rig.simulated.kv_transfers import TRANSFER_ANNOTATION

EXAMPLE = Path("examples/16-prefill-decode")
NAMESPACE, NAME = "inference", "llama"
PREFILL, DECODE = "llama-prefill", "llama-decode"
NODE_COUNT = 3
FULL_MINUTES = 10.0
RATE_PER_SECOND = 6.0
# Mean tokens: at first, with longer prompts, with longer answers. Lognormal around them.
PROMPT_TOKENS, LONG_PROMPT_TOKENS = 900.0, 3000.0
OUTPUT_TOKENS, LONG_OUTPUT_TOKENS = 120.0, 480.0
LENGTH_SPREAD = 0.4
LONGEST_PROMPT_TOKENS, LONGEST_OUTPUT_TOKENS = 8000, 1500
# Shares of the time at which the next mix begins, and which it takes to arrive.
PROMPTS_BEGIN, ANSWERS_BEGIN, LAST_BEGIN, SHIFT = 0.15, 0.45, 0.72, 0.08
DIRECT_BELOW_TOKENS = 400
READY_DELAY, STOP_DELAY = "10s", "15s"
# 20 ms, and 128 KiB a token over 80 Gb/s: slow enough to be seen in TTFT.
TRANSFER = "fixed_seconds=0.02,tokens_per_second=76000"
CLIENT_TIMEOUT_SECONDS = 120.0
STABILIZATION_SECONDS = 30
_LOOK_SECONDS, _TELL_SECONDS = 1.0, 10.0
_READY_SECONDS = 120.0
_HTTP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """The running system."""

    rig: Rig
    router_url: str
    resource: Mapping[str, Any]


def run_disaggregated(root: Path, *, minutes: float, seed: int, out: Path, tell: Reporter) -> str:
    """Run it and return the figures. Raises: RigError if a promise is missed at full length."""
    seconds = minutes * SECONDS_PER_MINUTE
    phases = phases_of(seconds)
    offered = requests_of(seconds, seed)
    with _running(root, tell) as system:
        tell(
            f"{minutes:g} minutes, {RATE_PER_SECOND:g} requests a second: longer prompts, "
            "then longer answers"
        )
        clients, path = _start_clients(system, offered, seconds)
        looks = _watch(system, clients, seconds)
        records = read_records(path)
        stats, decision = _stats(system), _decision(system)
        log = (system.rig.work_dir / "logs" / "operator.log").read_text(encoding="utf-8")
    figures = figures_of(
        records, looks, phases, _objectives(system.resource),
        gpus_max=int(system.resource["spec"]["gpus"]),
        through_ratio=stats["through_prefill"] / max(stats["requests"], 1),
        transfer=_transfer(decision),
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    text = table(figures)
    explained = [] if decision is None else list(fleet_lines(decision))
    changes = [line[line.index("changed ") :] for line in log.splitlines() if "changed " in line]
    (out / "disaggregated.log").write_text(log, encoding="utf-8")
    (out / "disaggregated-decisions.txt").write_text(
        "\n".join([*explained, "", *changes, ""]), encoding="utf-8"
    )
    picture = draw(figures, records, looks, phases, offered)
    if picture is not None:
        (out / "disaggregated.png").write_bytes(picture)
    return concluded(
        text, missed(figures), checked(figures), full=minutes >= FULL_MINUTES,
        file=out / "disaggregated.txt",
    )  # fmt: skip


def phases_of(seconds: float) -> tuple[Phase, Phase, Phase, Phase]:
    """The mixes of a run of this length: the first, longer prompts, longer answers, the first."""
    prompts, answers = PROMPTS_BEGIN * seconds, ANSWERS_BEGIN * seconds
    last = LAST_BEGIN * seconds
    return (
        Phase(
            name="at first", begins_seconds=0.0, ends_seconds=prompts,
            prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS,
        ),
        Phase(
            name="longer prompts", begins_seconds=prompts, ends_seconds=answers,
            prompt_tokens=LONG_PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS,
        ),
        Phase(
            name="longer answers", begins_seconds=answers, ends_seconds=last,
            prompt_tokens=PROMPT_TOKENS, output_tokens=LONG_OUTPUT_TOKENS,
        ),
        Phase(
            name="at last", begins_seconds=last, ends_seconds=seconds,
            prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS,
        ),
    )  # fmt: skip


def requests_of(seconds: float, seed: int) -> list[tuple[float, int, int]]:
    """Poisson arrivals: time, prompt and output tokens; each mix arrives gradually."""
    random = np.random.default_rng(seed)
    count = int(RATE_PER_SECOND * seconds)
    times = np.cumsum(random.exponential(1.0 / RATE_PER_SECOND, count))
    phases = phases_of(seconds)
    points = [0.0]
    points += [
        at
        for one in phases[1:]
        for at in (one.begins_seconds, one.begins_seconds + SHIFT * seconds)
    ]
    order = (0, 0, 1, 1, 2, 2, 3)
    spread = np.exp(-0.5 * LENGTH_SPREAD**2)  # so that the means are those of the phases

    def tokens(means: Sequence[float], longest: int) -> list[int]:
        mean = np.interp(times, points, [means[i] for i in order])
        drawn = mean * spread * random.lognormal(0.0, LENGTH_SPREAD, count)
        found: list[int] = np.clip(drawn, 1, longest).astype(int).tolist()
        return found

    prompts = tokens([one.prompt_tokens for one in phases], LONGEST_PROMPT_TOKENS)
    outputs = tokens([one.output_tokens for one in phases], LONGEST_OUTPUT_TOKENS)
    found = zip(times.tolist(), prompts, outputs, strict=True)
    return [one for one in found if one[0] < seconds]


@contextmanager
def _running(root: Path, tell: Reporter) -> Iterator[_System]:
    tell("starting the control plane, KWOK and Prometheus")
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS)) as rig:
        rig.add_nodes(NODE_COUNT)
        rig.configure_prometheus(http_sd_url=f"{start_engines(rig)}/sd")
        tell("helm install servingslo")
        install_chart(rig, root)
        tell(f"kubectl apply -f {EXAMPLE}: two Deployments, one ServingSLO")
        rig.create_namespace(NAMESPACE)
        _apply_deployments(rig, root)
        resource = _apply_resource(rig, root)
        tell("starting the router, and the operator with its ServiceAccount's token")
        router_url = start_router(
            rig, f"--namespace={NAMESPACE}", f"--prefill={PREFILL}", f"--decode={DECODE}",
            f"--direct-below={DIRECT_BELOW_TOKENS}",
        )  # fmt: skip
        start_operator(rig)
        yield _System(rig=rig, router_url=router_url, resource=resource)


def _apply_deployments(rig: Rig, root: Path) -> None:
    apps = kubernetes.client.AppsV1Api(rig.api_client())
    text = (root / EXAMPLE / "deployments.yaml").read_text(encoding="utf-8")
    for deployment in yaml.safe_load_all(text):
        template = deployment["spec"]["template"]
        template["metadata"]["labels"][ENGINE_LABEL] = "vllm"
        template["metadata"]["annotations"] = {
            KIND_ANNOTATION: "l4-small",
            TRANSFER_ANNOTATION: TRANSFER,
            "rig.servingslo.dev/ready-delay": READY_DELAY,
            "rig.servingslo.dev/stop-delay": STOP_DELAY,
        }
        template["spec"]["terminationGracePeriodSeconds"] = 75
        args = template["spec"]["containers"][0]["args"]
        # The small card's own limits; requests in flight are finished when a pod ends.
        args[:] = [one for one in args if not one.startswith("--max-num")]
        args += ["--max-num-seqs=64", "--max-num-batched-tokens=2048", "--shutdown-timeout=60"]
        apps.create_namespaced_deployment(NAMESPACE, deployment)
    rig.wait_for(
        lambda: min(_look(rig, 0.0).ready) > 0,
        what="a pod of each role", timeout_seconds=_READY_SECONDS,
    )  # fmt: skip


def _apply_resource(rig: Rig, root: Path) -> Mapping[str, Any]:
    slo = yaml.safe_load((root / EXAMPLE / "servingslo.yaml").read_text(encoding="utf-8"))
    window = {"stabilizationWindowSeconds": STABILIZATION_SECONDS}
    slo["spec"]["behavior"] = {"scaleDown": window}
    found: Mapping[str, Any] = kubernetes.client.CustomObjectsApi(
        rig.api_client()
    ).create_namespaced_custom_object("servingslo.dev", "v1beta1", NAMESPACE, "servingslos", slo)
    return found


def _start_clients(
    system: _System, offered: Sequence[tuple[float, int, int]], seconds: float
) -> tuple[ManagedProcess, Path]:
    trace = system.rig.work_dir / "trace.csv"
    lines = [f"{at:.4f},{prompt},{output}" for at, prompt, output in offered]
    header = "arrival_seconds,prompt_tokens,output_tokens"
    trace.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    plan = {
        "url": system.router_url,
        "timeout_seconds": CLIENT_TIMEOUT_SECONDS,
        "traffic": {
            "name": NAME, "namespace": NAMESPACE, "selector": {}, "trace": str(trace),
            "duration_seconds": seconds,
        },
    }  # fmt: skip
    return start_clients(system.rig, NAME, plan)


def _watch(system: _System, clients: ManagedProcess, seconds: float) -> list[Look]:
    """Look until all clients are done. Raises: RigError if they are not."""
    looks: list[Look] = []
    began, told = time.monotonic(), 0.0
    while clients.running:
        now = time.monotonic() - began
        if now > seconds + 2 * CLIENT_TIMEOUT_SECONDS:
            raise RigError("disaggregated: clients did not end")
        looks.append(_look(system.rig, now))
        if now - told >= _TELL_SECONDS:
            one = looks[-1]
            pools = ", ".join(
                f"{name} {ready}/{ordered}"
                for name, ready, ordered in zip(
                    ("prefill", "decode"), one.ready, one.ordered, strict=True
                )
            )
            print(f"{now:6.1f}s {pools}, {one.held_gpus} GPUs held", flush=True)
            told = now
        time.sleep(_LOOK_SECONDS)
    return [one for one in looks if one.at_seconds <= seconds]


def _look(rig: Rig, at_seconds: float) -> Look:
    client = rig.api_client()
    apps = kubernetes.client.AppsV1Api(client)
    found = [apps.read_namespaced_deployment(name, NAMESPACE) for name in (PREFILL, DECODE)]
    pods = kubernetes.client.CoreV1Api(client).list_namespaced_pod(NAMESPACE).items
    prefill, decode = ((one.spec.replicas or 0, one.status.ready_replicas or 0) for one in found)
    return Look(
        at_seconds=at_seconds,
        ordered=(prefill[0], decode[0]),
        ready=(prefill[1], decode[1]),
        held_gpus=sum(bool(pod.spec.node_name) for pod in pods),
    )


def _objectives(resource: Mapping[str, Any]) -> tuple[Objective, ...]:
    return tuple(
        Objective(
            metric=LatencyMetric(one["metric"]),
            percentile=float(one["percentile"]),
            threshold_seconds=parse_duration_seconds(one["threshold"]),
        )
        for one in resource["spec"]["objectives"]
    )


def _stats(system: _System) -> Mapping[str, Any]:
    with urllib.request.urlopen(f"{system.router_url}/stats", timeout=_HTTP_SECONDS) as answer:  # noqa: S310
        found: Mapping[str, Any] = json.loads(answer.read())
    return found


def _decision(system: _System) -> FleetDecision | None:
    """The last decision, as the status has it."""
    found = kubernetes.client.CustomObjectsApi(
        system.rig.api_client()
    ).get_namespaced_custom_object("servingslo.dev", "v1beta1", NAMESPACE, "servingslos", NAME)
    document = last_document(found.get("status") or {})
    return None if document is None else fleet_of(document, NAMESPACE, NAME)


def _transfer(decision: FleetDecision | None) -> str:
    """The mean time of a transfer as the operator reports it, and where it is from."""
    path = None if decision is None else decision.path
    if path is None:
        return "unknown"
    return f"{1000 * path.transfer_seconds:.0f} ms, {path.transfer_source}"
