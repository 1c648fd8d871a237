# ruff: noqa: T201 - a command that prints its findings
"""The operator scales real vLLM engines: one is enough, then two are needed, then one again.

Pods of the rig have a real vLLM each, without batch flags, held to a share of a core; a router
gives each request to the one with the fewest in flight; the operator is in mode Auto. One engine is
measured alone and at saturation first, and the objectives follow from that by a fixed rule. See
docs/how-to/real-engine.md. The exit status tells whether the count went 1, 2, 1 and every request
got its whole answer.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kubernetes
import numpy as np
from tests.integration.operator_under_test import Operator, install_chart
from tests.validation import engine_load, real_engine_report
from tests.validation.engine_load import Lengths
from tests.validation.engine_process import EngineSettings, write_model
from tests.validation.engine_requests import Served, write_served
from tests.validation.real_engine_pods import GRACE_SECONDS, HEALTH_ANNOTATIONS, RealEngines

from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.waiting import http_get
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples/traces/azure_llm_2023_conversation.csv"
NAMESPACE, NAME = "inference", "tiny"
INTERVAL_SECONDS = 5.0
# Of the measured saturation of one engine: one is enough, one is not, one is enough again. What is
# in the middle outlasts an engine's start: a minute, two or three on a busy machine.
LOADS = (0.35, 0.9, 0.9, 0.9, 0.3, 0.3)
PHASE_SECONDS = 90.0
MAX_REPLICAS = 3
ALONE_SECONDS, SATURATION_SECONDS, SATURATION_CLIENTS = 20.0, 45.0, 32
# At half of its saturation an engine's p95 is about 3 times, at three quarters 7 times that of a
# request alone (0006): objectives between the two make one engine too few at nine tenths and two
# enough.
TTFT_FACTOR, TPOT_FACTOR = 4.0, 6.0
_READY_SECONDS = 420.0
_OPERATOR_SECONDS = 120.0
_QUIET_SECONDS = 150.0
_DRAIN_TIMEOUT_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run. scale: of the trace's lengths. loads: share of saturation in each phase."""

    engine: EngineSettings
    out: Path
    scale: float
    loads: tuple[float, ...]
    phase_seconds: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One engine before the operator runs: alone p95 of TTFT, mean TPOT, and saturation."""

    ttft_seconds: float
    tpot_seconds: float
    saturation_per_second: float

    def objectives(self) -> list[dict[str, Any]]:
        """Tolerant ones, rounded up to 0.1 s and 10 ms."""
        ttft = math.ceil(10 * TTFT_FACTOR * self.ttft_seconds) / 10
        tpot = math.ceil(100 * TPOT_FACTOR * self.tpot_seconds) * 10
        return [
            {"metric": "ttft", "percentile": 95, "threshold": f"{ttft:g}s"},
            {"metric": "tpot", "percentile": 95, "threshold": f"{tpot}ms"},
        ]


def main() -> int:
    """Run it, and print what it shows."""
    plan = _plan()
    plan.out.mkdir(parents=True, exist_ok=False)
    write_model(plan.engine, plan.out / "model")
    with Rig.start(RigOptions(scrape_interval_seconds=INTERVAL_SECONDS)) as rig:
        try:
            asyncio.run(_Loop(rig, plan).run())
        finally:
            _keep_logs(rig, plan.out)
    return real_engine_report.report(plan.out)


class _Loop:
    """One run."""

    def __init__(self, rig: Rig, plan: Plan) -> None:
        self._rig = rig
        self._plan = plan
        self._engines = RealEngines(rig, plan.engine, NAMESPACE)
        client = rig.api_client()
        self._apps = kubernetes.client.AppsV1Api(client)
        self._custom = kubernetes.client.CustomObjectsApi(client)
        self._operator: Operator | None = None
        self._samples: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Everything, with what came of it written into the folder."""
        await self._engines.serve()
        followed = asyncio.create_task(self._engines.follow())
        sampling: asyncio.Task[None] | None = None
        try:
            await asyncio.to_thread(self._prepare)
            await self._until(1)
            lengths = engine_load.scaled_lengths(
                read_trace(TRACE), self._plan.scale, self._plan.engine.max_model_len
            )
            measured = await self._measure(lengths)
            await asyncio.to_thread(self._hand_over, measured)
            rates = [share * measured.saturation_per_second for share in self._plan.loads]
            print(f"phases: {', '.join(f'{rate:.2f}' for rate in rates)} requests/s", flush=True)
            load = engine_load.planned_load(
                lengths, rates, self._plan.phase_seconds, self._plan.seed
            )
            began = time.monotonic()
            sampling = asyncio.create_task(self._sample(began))
            served = await engine_load.send(self._engines.url, load, self._plan.seed)
            await self._settled()
            self._write(began, rates, measured, served)
        finally:
            for task in (sampling, followed):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            await self._engines.close()

    def _prepare(self) -> None:
        self._rig.add_nodes(1)
        install_chart(self._rig)
        self._rig.create_namespace(NAMESPACE)
        self._rig.configure_prometheus(http_sd_url=f"{self._engines.url}/sd")
        self._apps.create_namespaced_deployment(NAMESPACE, _deployment(self._plan))

    async def _until(self, ready: int) -> None:
        """Wait for so many Ready pods. Raises: RigError after some minutes."""
        deadline = time.monotonic() + _READY_SECONDS
        while self._engines.ready_count < ready:
            if time.monotonic() > deadline:
                raise RigError(f"no {ready} Ready pods after {_READY_SECONDS:g} s")
            await asyncio.sleep(0.5)
        life = self._engines.lives[0]
        print(f"vLLM answers after {(life.ready or 0.0) - life.started:.0f} s", flush=True)

    async def _measure(self, lengths: Lengths) -> Measured:
        """Alone: one request after another. Saturation: there is always a next one."""
        url, seed = self._engines.url, self._plan.seed
        # The first request of an engine takes longer than any after it.
        await engine_load.one_after_another(url, lengths, 3.0, seed + 1)
        alone = await engine_load.one_after_another(url, lengths, ALONE_SECONDS, seed)
        saturation = await engine_load.saturation_rate_per_second(
            url, lengths, SATURATION_CLIENTS, SATURATION_SECONDS, seed
        )
        measured = Measured(
            ttft_seconds=float(np.percentile([one[0] for one in alone], 95)),
            tpot_seconds=float(np.mean([one[1] for one in alone])),
            saturation_per_second=saturation,
        )
        print(
            f"alone: TTFT p95 {measured.ttft_seconds:.2f} s, TPOT {measured.tpot_seconds:.3f} s; "
            f"saturation {saturation:.2f} requests/s; load average {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        return measured

    def _hand_over(self, measured: Measured) -> None:
        """The operator starts, and is given the workload."""
        recording = self._plan.out / "recording.jsonl"
        self._operator = Operator(
            self._rig, f"--tick-seconds={INTERVAL_SECONDS:g}", f"--record={recording}"
        )
        self._operator.start(timeout_seconds=_OPERATOR_SECONDS)
        spec = {
            "targetRef": {"kind": "Deployment", "name": NAME},
            "mode": "Auto",
            "objectives": measured.objectives(),
            "replicas": {"min": 1, "max": MAX_REPLICAS},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 30}},
        }
        print(f"objectives: {json.dumps(spec['objectives'])}", flush=True)
        self._custom.create_namespaced_custom_object(
            GROUP, VERSION, NAMESPACE, PLURAL,
            {
                "apiVersion": f"{GROUP}/{VERSION}", "kind": "ServingSLO",
                "metadata": {"name": NAME}, "spec": spec,
            },
            field_validation="Strict",
        )  # fmt: skip

    async def _sample(self, began: float) -> None:
        """Status, counts and load of the machine, until cancelled."""
        before = self._engines.core_times()
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            with contextlib.suppress(kubernetes.client.ApiException, OSError):
                target, slo = await asyncio.to_thread(self._read)
                now = self._engines.core_times()
                self._samples.append(
                    {
                        "seconds": time.monotonic() - began,
                        "replicas": target.spec.replicas,
                        "ready": self._engines.ready_count,
                        "in_flight": self._engines.in_flight,
                        "load_average": os.getloadavg()[0],
                        "core_ran_seconds": now.ran_seconds - before.ran_seconds,
                        "core_waited_seconds": now.waited_seconds - before.waited_seconds,
                        "status": slo.get("status") or {},
                    }
                )
                before = now

    def _read(self) -> tuple[Any, dict[str, Any]]:
        target = self._apps.read_namespaced_deployment(NAME, NAMESPACE)
        slo = self._custom.get_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, NAME)
        return target, slo

    async def _settled(self) -> None:
        """Wait until one pod is left and every other process has ended, or the time is up."""
        deadline = time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < deadline:
            target, _ = await asyncio.to_thread(self._read)
            running = [life for life in self._engines.lives if life.ended is None]
            if target.spec.replicas == 1 and len(running) == 1:
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(INTERVAL_SECONDS)

    def _write(
        self, began: float, rates: Sequence[float], measured: Measured, served: Sequence[Served]
    ) -> None:
        out = self._plan.out
        write_served(served, out / "requests.csv")
        lives = []
        for life in self._engines.lives:
            document = asdict(life)
            for name in ("started", "ready", "deleted", "terminated", "ended"):
                if document[name] is not None:
                    document[name] -= began
            lives.append(document)
        run = {
            "phase_seconds": self._plan.phase_seconds,
            "rates_per_second": list(rates),
            "measured": asdict(measured),
            "objectives": measured.objectives(),
            "arguments": _arguments(self._plan),
            "core_share": self._plan.engine.core_share,
            "aborted": _aborted(self._rig),
            "pods": lives,
            "samples": self._samples,
        }
        (out / "run.json").write_text(json.dumps(run, indent=1), encoding="utf-8")


def _aborted(rig: Rig) -> float | None:
    """Requests that engines say they aborted; None where none tells."""
    query = 'sum(max_over_time(vllm:request_success_total{finished_reason="abort"}[1h]))'
    address = f"{rig.prometheus_url}/api/v1/query?query="
    answer = http_get(address + query.replace("{", "%7B").replace("}", "%7D").replace('"', "%22"))
    found = json.loads(answer or "{}").get("data", {}).get("result", [])
    return float(found[0]["value"][1]) if found else None


def _arguments(plan: Plan) -> list[str]:
    """Of the container: no batch limit is among them."""
    drain = f"--shutdown-timeout={_DRAIN_TIMEOUT_SECONDS}"
    return ["serve", str((plan.out / "model").resolve()), *plan.engine.arguments, drain]


def _deployment(plan: Plan) -> dict[str, Any]:
    labels = {"app": NAME}
    container = {"name": "vllm", "image": "vllm-cpu:0.32.0", "args": _arguments(plan)}
    pod = {
        "metadata": {"labels": labels, "annotations": dict(HEALTH_ANNOTATIONS)},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": GRACE_SECONDS},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}
    return {"metadata": {"name": NAME}, "spec": spec}


def _keep_logs(rig: Rig, out: Path) -> None:
    """The operator's log, and the engines' own."""
    for process in rig.processes.values():
        if process.name.startswith(("vllm-", "operator")) and process.log_path.exists():
            (out / process.log_path.name).write_bytes(process.log_path.read_bytes())


def _plan() -> Plan:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, help="Python of an environment that has vLLM.")
    parser.add_argument("--out", type=Path, help="Folder for all results; one by the time of day.")
    parser.add_argument("--report", action="store_true", help="Only print what --out holds.")
    parser.add_argument("--phase-seconds", type=float, default=PHASE_SECONDS)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="Shares of saturation.")
    parser.add_argument("--scale", type=float, default=0.2, help="Of the trace's lengths.")
    parser.add_argument("--core-share", type=float, default=0.15, help="Of a core, each engine.")
    parser.add_argument("--hidden", type=int, default=256, help="Size of the model.")
    parser.add_argument("--layers", type=int, default=4, help="Of the model.")
    parser.add_argument("--nice", type=int, default=5, help="Added to the engines' priority.")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.report:
        if given.out is None:
            parser.error("--report needs --out")
        sys.exit(real_engine_report.report(given.out))
    if given.vllm is None:
        parser.error("--vllm is required to run engines")
    return Plan(
        engine=EngineSettings(
            # Not resolved: an environment's Python is a link, and knows it by its own path.
            python=given.vllm.absolute(),
            max_num_seqs=None,
            max_num_batched_tokens=None,
            hidden=given.hidden,
            layers=given.layers,
            nice=given.nice,
            core_share=given.core_share,
        ),
        out=given.out or Path("out/real-engines") / time.strftime("%Y-%m-%dT%H%M%S", time.gmtime()),
        scale=given.scale,
        loads=tuple(float(share) for share in given.loads.split(",")),
        phase_seconds=given.phase_seconds,
        seed=given.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
