"""A law for each pod beside the law of all pods times a pace of each, on fleets with a slow pod.

Run as `python -m tests.benchmarks.pod_laws [seeds]`; a table of docs/lab/findings.md.
Four simulated engines of one kind, least-loaded routing, Azure conversation lengths, 15 s scrapes.
One of them is slower: in all of a step, in its prefill alone or in its decoding alone. Each
estimator learns until a moment; its errors are of the windows of five minutes after it and of the
step time at twice the slow pod's concurrency, against the law simulated. 'Paces inside the fit'
divides each pod's windows by its pace before they enter the law of all, and multiplies by it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
from tests.unit.estimation_fleet import SimulatedFleet, poisson

from servingslo.estimation.law import fit as service_law
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import LawFit
from servingslo.estimation.law.least_squares import Vector
from servingslo.estimation.law.rows import Row, regression_rows
from servingslo.estimation.pods import slowdown as pod_slowdown
from servingslo.estimation.windows.counters import EngineMemory, advance
from servingslo.models.engine.service_time import ServiceLaw
from servingslo_lab.sim.fleets.engine_kinds import EngineKind, engine_kind
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
REPLICAS = 4
SLOW_POD = "pod-3"
LEARNT_FOR_SECONDS = (120.0, 300.0, 1200.0)
JUDGED_FOR_SECONDS = 300.0
DEFAULT_SEEDS = 3
# E[O·(P + O/2)]/E[O] of the trace: tokens that a running sequence holds.
CONTEXT_TOKENS = 1227.0
FACTOR = 1.5
# How long before the end of learning a pod becomes slow that was not.
LATE_SECONDS, OF_LATE = 120.0, "all, of late"
GROUPS = {
    "none": "none",
    "all": "1.5 times slower",
    "prefill": "1.5 times slower",
    "decoding": "1.5 times slower",
    OF_LATE: "1.5 times slower for two minutes",
}
LOADS = (("h100-8b", 3.0), ("h100-8b", 9.0), ("l4-small", 1.0), ("l4-small", 2.2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Mean absolute relative errors.

    slow_ratio, usual_ratio: of the next windows of the slow pod and of the others. twice_ratio,
    usual_twice_ratio: of the step time at twice the slow pod's concurrency, of the slow pod and of
    another one.
    """

    slow_ratio: float
    usual_ratio: float
    twice_ratio: float
    usual_twice_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Equations of each pod by tick, and the mean concurrency of the slow pod."""

    ticks: Sequence[Mapping[str, Sequence[Row]]]
    running: float


def slower(law: ServiceLaw, what: str) -> ServiceLaw:
    """The law of a pod that is slower in this."""
    decoding = {
        "step_fixed_seconds": law.step_fixed_seconds * FACTOR,
        "step_per_sequence_seconds": law.step_per_sequence_seconds * FACTOR,
        "context_per_token_seconds": law.context_per_token_seconds * FACTOR,
    }
    prefill = {"prefill_per_token_seconds": law.prefill_per_token_seconds * FACTOR}
    both = decoding | prefill
    parts = {"none": {}, "all": both, OF_LATE: both, "prefill": prefill, "decoding": decoding}
    return replace(law, **parts[what])


def seen(kind: EngineKind, rate: float, what: str, seed: int) -> Seen:
    """What the pods of such a fleet export over the longest time learnt and judged."""
    rng = np.random.default_rng(seed)
    trace = read_trace(TRACE)
    until = LEARNT_FOR_SECONDS[-1] + JUDGED_FOR_SECONDS
    arrivals = poisson(rate * REPLICAS, until, rng)
    chosen = rng.integers(0, len(trace), len(arrivals))
    fleet = SimulatedFleet(kind=kind, replicas=REPLICAS)
    fleet.service.remove(SLOW_POD, 0.0, drain=False)
    first = kind.law if what == OF_LATE else slower(kind.law, what)
    engine = Engine(law=first, limits=kind.limits, requests=fleet.service.requests)
    fleet.engines[SLOW_POD] = engine
    fleet.service.add(SLOW_POD, engine, 0.0)
    memories: dict[str, EngineMemory] = {}
    ticks, running = [], []

    def begin(now_seconds: float) -> None:
        if what == OF_LATE and now_seconds >= LEARNT_FOR_SECONDS[-1] - LATE_SECONDS:
            engine.row.floats[layout.SLOWNESS] = FACTOR

    for sample in fleet.run(
        arrivals,
        np.array(trace.prompt_tokens)[chosen],
        np.array(trace.output_tokens)[chosen],
        until=until,
        at_tick=begin,
    ):
        rows: dict[str, Sequence[Row]] = {}
        for pod in sample.pods:
            step = advance(memories.get(pod.name), pod, pod.engines[0], sample.time_seconds, None)
            memories[pod.name] = step.memory
            rows[pod.name] = regression_rows(step.flow, 1.0, REPLICAS) if step.flow else ()
        ticks.append(rows)
        running.append(float(engine.running))
    return Seen(ticks=ticks, running=float(np.mean(running[8:])))


def errors(
    found: Seen, seconds: float, usual: ServiceLaw, what: str
) -> Iterator[tuple[str, Errors]]:
    """Each estimator's errors after learning for so long."""
    learnt, judged = _split(found.ticks, seconds)
    start = LawFit(configuration=Configuration(max_num_seqs=256))
    pooled, paces = start, ()
    beside, own_paces = start, ()
    by_pod = dict.fromkeys(found.ticks[0], start)
    for rows in learnt:
        law = service_law.solution(pooled)
        paces = pod_slowdown.observe(paces, rows, law, frozenset(rows))
        pooled = service_law.learn(pooled, [row for each in rows.values() for row in each])
        own_paces = pod_slowdown.observe(
            own_paces, rows, service_law.solution(beside), frozenset(rows)
        )
        beside = service_law.learn(beside, _at_one_pace(rows, own_paces))
        by_pod = {pod: service_law.learn(fit, rows[pod]) for pod, fit in by_pod.items()}
    common = service_law.solution(pooled)
    apart = service_law.solution(beside)
    factors = {pace.pod: np.exp(pace.log_ratio) for pace in paces}
    own = {pace.pod: np.exp(pace.log_ratio) for pace in own_paces}
    laws: dict[str, dict[str, Vector | None]] = {
        "law of all": dict.fromkeys(by_pod, common),
        "law of all × pace": {
            pod: None if common is None else _scaled(common, factors.get(pod, 1.0))
            for pod in by_pod
        },
        "paces inside the fit": {
            pod: None if apart is None else _scaled(apart, own.get(pod, 1.0)) for pod in by_pod
        },
        "law of each pod": {pod: service_law.solution(fit) for pod, fit in by_pod.items()},
    }
    for name, each in laws.items():
        yield name, _errors(each, judged, (slower(usual, what), usual), 2.0 * found.running)


def _split(
    ticks: Sequence[Mapping[str, Sequence[Row]]], seconds: float
) -> tuple[Sequence[Mapping[str, Sequence[Row]]], Sequence[Mapping[str, Sequence[Row]]]]:
    end = round(seconds / 15.0)
    return ticks[:end], ticks[end : end + round(JUDGED_FOR_SECONDS / 15.0)]


def _at_one_pace(
    rows: Mapping[str, Sequence[Row]], paces: Sequence[pod_slowdown.PodSlowdown]
) -> list[Row]:
    """The equations of all pods as if each were as fast as their geometric mean."""
    logs = {p.pod: p.log_ratio for p in paces if p.window_count >= pod_slowdown.LEAST_PACE_WINDOWS}
    usual = float(np.mean(list(logs.values()))) if logs else 0.0
    found = []
    for pod, each in rows.items():
        factor = float(np.exp(logs.get(pod, usual) - usual))
        found.extend(replace(row, x=_scaled(row.x, factor)) for row in each)
    return found


def _scaled(law: Vector, factor: float) -> Vector:
    return law[0] * factor, law[1] * factor, law[2] * factor


def _errors(
    laws: Mapping[str, Vector | None],
    judged: Sequence[Mapping[str, Sequence[Row]]],
    truths: tuple[ServiceLaw, ServiceLaw],
    sequences: float,
) -> Errors:
    slow, usual = [], []
    for rows in judged:
        for pod, each in rows.items():
            law = laws[pod]
            if law is None:
                continue
            wrong = [
                abs(sum(x * value for x, value in zip(row.x, law, strict=True)) - 1.0)
                for row in each
                if row.scored
            ]
            (slow if pod == SLOW_POD else usual).extend(wrong)
    twice = []
    for law, truth in zip((laws[SLOW_POD], laws["pod-0"]), truths, strict=True):
        real = truth.step_seconds(sequences, context_tokens=CONTEXT_TOKENS * sequences)
        step = float("nan") if law is None else law[0] + law[1] * sequences
        twice.append(abs(step / real - 1.0))
    return Errors(
        slow_ratio=float(np.mean(slow)),
        usual_ratio=float(np.mean(usual)),
        twice_ratio=twice[0],
        usual_twice_ratio=twice[1],
    )


def main(seeds: int) -> None:
    """Print the table: each cell has the four errors in the order of `Errors`, in percent."""
    cells: dict[tuple[str, float, str], list[Errors]] = {}
    for name, rate in LOADS:
        kind = engine_kind(name)
        for what, group in GROUPS.items():
            times = LEARNT_FOR_SECONDS[-1:] if what == OF_LATE else LEARNT_FOR_SECONDS
            for seed in range(seeds):
                found = seen(kind, rate, what, seed)
                for seconds in times:
                    for estimator, wrong in errors(found, seconds, kind.law, what):
                        cells.setdefault((group, seconds, estimator), []).append(wrong)
    estimators = list(dict.fromkeys(estimator for _, _, estimator in cells))
    _write("a slow pod", "learnt for", *estimators)
    _write(*["---"] * (2 + len(estimators)))
    for group, seconds in dict.fromkeys((group, seconds) for group, seconds, _ in cells):
        row = (_cell(cells[group, seconds, estimator]) for estimator in estimators)
        _write(group, f"{seconds:g} s", *row)


def _cell(wrong: Sequence[Errors]) -> str:
    each = np.array([astuple(one) for one in wrong])
    return " / ".join(f"{100 * value:.1f}" for value in each.mean(axis=0))


def _write(*columns: str) -> None:
    sys.stdout.write(f"| {' | '.join(columns)} |\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SEEDS)
