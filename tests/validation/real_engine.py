# ruff: noqa: T201 - a command that prints its findings
"""Records a real vLLM through the operator's own chain, fits it, and compares.

A vLLM on a tiny model serves scaled lengths of the Azure conversation trace; the rig's Prometheus
scrapes it as the pod of a Deployment; `servingslo record` writes what the operator would see. Then
`servingslo fit` and `plan` read the recording, and observed percentiles are put beside the model's
and the simulator's with the fitted law. See docs/how-to/real-engine.md.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import kubernetes
from tests.validation import engine_comparison, engine_load
from tests.validation.engine_load import Load
from tests.validation.engine_process import CoreTime, EngineSettings, Vllm
from tests.validation.engine_requests import Served, read_served, write_served

from servingslo.adapters.clock import SystemClock
from servingslo.api.crd import custom_resource_definition
from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION
from servingslo_lab.cli.fitting.sources import recorded_samples
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples/traces/azure_llm_2023_conversation.csv"
NAMESPACE, NAME = "inference", "tiny"
SCRAPE_INTERVAL_SECONDS = 5.0
# Utilization of the measured saturation in each phase: low, high, and in between, up and down.
LOADS = (0.15, 0.45, 0.8, 0.6, 0.3)
SATURATION_SECONDS = 60.0
# Requests in flight while saturation is measured, of an engine whose limit is its own default.
SATURATION_CLIENTS = 64
# How long Prometheus and the recorder are given to begin, and the last requests to end.
_START_SECONDS = 15.0
_END_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run. scale: of the trace's lengths. loads: share of saturation in each phase."""

    engine: EngineSettings
    out: Path
    scale: float
    loads: tuple[float, ...]
    phase_seconds: float
    saturation_seconds: float
    seed: int


def main() -> None:
    """Run one recording and print what it shows."""
    plan = _plan()
    plan.out.mkdir(parents=True, exist_ok=False)
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS)) as rig:
        rig.add_nodes(1)
        engine = Vllm(rig, plan.engine, plan.out / "model")
        pod = _apply(rig, plan.engine)
        with _discovery(engine.address, pod) as url:
            rig.configure_prometheus(http_sd_url=url)
            load = _load(plan, engine)
            began_seconds, served, cores = _recorded(rig, plan, engine, load)
        (plan.out / "page.txt").write_text(engine.page(), encoding="utf-8")
    write_served(served, plan.out / "requests.csv")
    (plan.out / "load.json").write_text(
        json.dumps(
            {
                "began_seconds": began_seconds,
                "phase_seconds": load.phase_seconds,
                "rates_per_second": load.rates_per_second,
                "core_ran_seconds": [core.ran_seconds for core in cores],
                "core_waited_seconds": [core.waited_seconds for core in cores],
            }
        ),
        encoding="utf-8",
    )
    report(plan.out)


def report(folder: Path) -> None:
    """Print what a finished recording shows: commands of the operator, then the comparison."""
    recording = folder / "recording.jsonl"
    _command("fit", "--recording", str(recording))
    decided = _command("plan", "--observations", str(recording), "-o", "text", quiet=True)
    print("\n".join(decided.rstrip().rsplit("\n\n", 1)[-1].splitlines()), flush=True)
    load = json.loads((folder / "load.json").read_text(encoding="utf-8"))
    lines = (folder / "requests.csv").read_text(encoding="utf-8").splitlines()
    served = read_served(lines)
    failed = sum(one.ttft_seconds is None for one in served)
    samples = recorded_samples(str(recording))[f"{NAMESPACE}/{NAME}"]
    estimate = engine_comparison.estimated(samples)
    shares = [
        f"{waited / max(ran + waited, 1e-9):.0%}"
        for ran, waited in zip(load["core_ran_seconds"], load["core_waited_seconds"], strict=True)
    ]
    print(f"\n{len(served)} requests, {failed} failed")
    print(f"share of its runnable time that the engine waited for a core: {', '.join(shares)}\n")
    if estimate.law.law is None or estimate.limits is None:
        print("no law, nothing to compare")
        return
    comparisons = engine_comparison.compared(
        served,
        samples,
        load["began_seconds"],
        load["phase_seconds"],
        estimate.law.law,
        estimate.limits,
    )
    print("\n".join(engine_comparison.table(comparisons)))
    chances = engine_comparison.by_chance(
        served, load["phase_seconds"], estimate.law.law, estimate.limits
    )
    print("\nsimulated p95 over other arrivals at these rates, 10th to 90th percentile, ms:")
    for comparison, chance in zip(comparisons, chances, strict=True):
        ttft, tpot = ([round(1000 * seconds) for seconds in r] for r in (chance.ttft, chance.tpot))
        rate = comparison.observed.rate_per_second
        print(f"  {rate:.1f}/s: ttft {ttft[0]} to {ttft[1]}, tpot {tpot[0]} to {tpot[1]}")


def _plan() -> Plan:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, help="Python of an environment that has vLLM.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for all results.")
    parser.add_argument("--report", action="store_true", help="Only print what --out holds.")
    parser.add_argument("--phase-seconds", type=float, default=110.0)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="Shares of saturation.")
    parser.add_argument("--scale", type=float, default=0.2, help="Of the trace's lengths.")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="0: the engine's default.")
    parser.add_argument("--max-num-batched-tokens", type=int, default=512, help="0: the same.")
    parser.add_argument("--saturation-seconds", type=float, default=SATURATION_SECONDS)
    parser.add_argument(
        "--core-share",
        type=float,
        help="Hold the engine to this share of one core: on a shared machine it is even then.",
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.report:
        report(given.out)
        sys.exit()
    if given.vllm is None:
        parser.error("--vllm is required to run an engine")
    return Plan(
        engine=EngineSettings(
            # Not resolved: an environment's Python is a link, and knows it by its own path.
            python=given.vllm.absolute(),
            max_num_seqs=given.max_num_seqs or None,
            max_num_batched_tokens=given.max_num_batched_tokens or None,
            core_share=given.core_share,
        ),
        out=given.out,
        scale=given.scale,
        loads=tuple(float(share) for share in given.loads.split(",")),
        phase_seconds=given.phase_seconds,
        saturation_seconds=given.saturation_seconds,
        seed=given.seed,
    )


def _load(plan: Plan, engine: Vllm) -> Load:
    """The load at the stated shares of what the engine was measured to carry."""
    lengths = engine_load.scaled_lengths(read_trace(TRACE), plan.scale, plan.engine.max_model_len)
    saturation = asyncio.run(
        engine_load.saturation_rate_per_second(
            engine.url,
            lengths,
            plan.engine.max_num_seqs or SATURATION_CLIENTS,
            plan.saturation_seconds,
            plan.seed,
        )
    )
    rates = [share * saturation for share in plan.loads]
    print(
        f"saturation: {saturation:.1f} requests/s; phases: {', '.join(f'{r:.1f}' for r in rates)}"
    )
    return engine_load.planned_load(lengths, rates, plan.phase_seconds, plan.seed)


def _recorded(
    rig: Rig, plan: Plan, engine: Vllm, load: Load
) -> tuple[float, list[Served], list[CoreTime]]:
    """When the load began (wall clock), its requests, and core time in each phase."""
    seconds = _START_SECONDS + load.duration_seconds + _END_SECONDS
    recorder = subprocess.Popen(
        [
            sys.executable, "-m", "servingslo.cli", "record", f"{NAMESPACE}/{NAME}",
            f"--for={seconds:.0f}s", f"--every={SCRAPE_INTERVAL_SECONDS:g}s",
            f"--out={plan.out / 'recording.jsonl'}", f"--prometheus-url={rig.prometheus_url}",
            f"--kubeconfig={rig.admin_kubeconfig}",
        ],
    )  # fmt: skip

    async def run() -> tuple[float, list[Served], list[CoreTime]]:
        await asyncio.sleep(_START_SECONDS)
        began_seconds = SystemClock.now_seconds()
        served, cores = await asyncio.gather(
            engine_load.send(engine.url, load, plan.seed), _core_times(engine, load)
        )
        return began_seconds, served, cores

    try:
        result = asyncio.run(run())
        if recorder.wait(timeout=10 * _END_SECONDS) != 0:
            raise RigError("servingslo record failed; its message is above")
    finally:
        recorder.kill()
    return result


async def _core_times(engine: Vllm, load: Load) -> list[CoreTime]:
    """Core time of the engine in each phase."""
    found = []
    before = engine.core_time()
    for _ in load.rates_per_second:
        await asyncio.sleep(load.phase_seconds)
        now = engine.core_time()
        found.append(
            CoreTime(
                ran_seconds=now.ran_seconds - before.ran_seconds,
                waited_seconds=now.waited_seconds - before.waited_seconds,
            )
        )
        before = now
    return found


def _apply(rig: Rig, settings: EngineSettings) -> str:
    """CRD, Deployment and ServingSLO as a user would apply them; the name of the only pod."""
    client = rig.api_client()
    kubernetes.client.ApiextensionsV1Api(client).create_custom_resource_definition(
        custom_resource_definition()
    )
    rig.create_namespace(NAMESPACE)
    labels = {"app": NAME}
    container = {
        "name": "vllm",
        "image": "vllm-cpu:0.32.0",
        "args": ["serve", "/models/tiny", *settings.arguments],
    }
    kubernetes.client.AppsV1Api(client).create_namespaced_deployment(
        NAMESPACE,
        {
            "metadata": {"name": NAME},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
    )
    resource = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ServingSLO",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "targetRef": {"kind": "Deployment", "name": NAME},
            "mode": "Recommend",
            "objectives": [
                {"metric": "ttft", "percentile": 95, "threshold": "2s"},
                {"metric": "tpot", "percentile": 95, "threshold": "200ms"},
            ],
            "replicas": {"min": 1, "max": 8},
        },
    }
    custom = kubernetes.client.CustomObjectsApi(client)

    def created() -> bool:
        try:
            custom.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, resource)
        except kubernetes.client.ApiException as error:
            if error.status == 404:  # the API server does not serve the new kind yet
                return False
            raise
        return True

    rig.wait_for(created, what="the ServingSLO is created")
    core = kubernetes.client.CoreV1Api(client)

    def ready_pods() -> list[str]:
        return [
            pod.metadata.name
            for pod in core.list_namespaced_pod(NAMESPACE).items
            for condition in pod.status.conditions or []
            if condition.type == "Ready" and condition.status == "True"
        ]

    rig.wait_for(lambda: bool(ready_pods()), what="the pod is Ready")
    return ready_pods()[0]


@contextmanager
def _discovery(address: str, pod: str) -> Iterator[str]:
    """An address at which Prometheus finds the engine with the labels of its pod."""
    labels = {"namespace": NAMESPACE, "pod": pod, "container": "vllm"}
    body = json.dumps([{"targets": [address], "labels": labels}]).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()


def _command(*arguments: str, quiet: bool = False) -> str:
    """Run `servingslo` as a user would; its output, printed unless quiet."""
    words: Sequence[str] = (sys.executable, "-m", "servingslo.cli", *arguments)
    print(f"$ servingslo {' '.join(arguments)}", flush=True)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
    if not quiet:
        print(done.stdout, end="")
    print(f"{done.stderr}exit code {done.returncode}\n", flush=True)
    return done.stdout


if __name__ == "__main__":
    main()
