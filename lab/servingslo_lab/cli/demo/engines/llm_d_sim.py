"""`servingslo demo --engine llm-d-sim`: replicas of a program with vLLM's metrics follow a surge.

The engine, its metrics and its errors are llm-d-inference-sim's own, and the verdict rests on the
clients' records alone.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.demo.engines.system import Engine, RealEngines, real_engines
from servingslo_lab.cli.demo.engines.triton_verdict import Answer, Phase, phase_line
from servingslo_lab.cli.demo.report import concluded
from servingslo_lab.cli.demo.system import Reporter
from servingslo_lab.rig.llm_d_sim import LlmDSim, completion
from servingslo_lab.rig.pod_servers import Answered

NAME = "chat"
MODEL = "sim/chat"
SEQUENCES = 8
# A token each 20 ms alone and each 40 ms with eight sequences: answers of 64 tokens take 2.6 s
# there, so a full replica ends three requests per second.
ENGINE = Engine(
    name=NAME,
    container={
        "name": "llm-d-sim",
        "image": "ghcr.io/llm-d/llm-d-inference-sim:v0.10.2",
        "args": [
            f"--model={MODEL}",
            f"--max-num-seqs={SEQUENCES}",
            "--max-model-len=2048",
            "--enable-kvcache=true",
            "--kv-cache-size=2048",
            "--block-size=16",
            "--latency-calculator=per-token",
            "--prefill-overhead=50ms",
            "--prefill-time-per-token=200us",
            "--inter-token-latency=20ms",
            "--time-factor-under-load=2",
        ],
    },
    server_at=LlmDSim,
    question=completion(MODEL, prompt_words=(100, 300), output_tokens=(32, 96)),
)
PERCENTILE = 95.0
TTFT_SECONDS, TPOT_SECONDS = 1.0, 0.06
MOST_REPLICAS = 6
SPEC = {
    # Its image is not known to start vLLM, and it has no limit of tokens; without the limits no law
    # is trusted, and saturation decides.
    "runtime": "vllm",
    "engine": {"maxSequences": SEQUENCES, "maxBatchedTokens": 2048},
    "objectives": [
        {"metric": "ttft", "percentile": PERCENTILE, "threshold": f"{1000 * TTFT_SECONDS:.0f}ms"},
        {"metric": "tpot", "percentile": PERCENTILE, "threshold": f"{1000 * TPOT_SECONDS:.0f}ms"},
    ],
    "replicas": {"min": 1, "max": MOST_REPLICAS},
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 30}},
}
FULL_MINUTES = 6.0
BASE_PER_SECOND, SURGE_PER_SECOND = 1.5, 6.0
SURGE_BEGINS, SURGE_ENDS = 0.25, 0.55
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeFigures:
    """One run. replicas: time and desired count of each look. surge: its begin and end."""

    answers: tuple[Answered, ...]
    began: float
    surge: tuple[float, float]
    replicas: tuple[tuple[float, int], ...]

    def phase(self, first: float, last: float, *, tpot: bool = False) -> Phase | None:
        """Requests sent between two times by their first token, or by TPOT."""
        found = [
            Answer(
                one.sent - self.began,
                _tpot_seconds(one) if tpot else one.first_seconds,
                one.status == 200,
            )
            for one in self.answers
            if first <= one.sent - self.began < last
        ]
        return Phase.of(found, TPOT_SECONDS if tpot else TTFT_SECONDS)

    @property
    def in_slo_ratio(self) -> float:
        """Share of all requests within both thresholds."""
        good = [
            one.status == 200
            and one.first_seconds <= TTFT_SECONDS
            and _tpot_seconds(one) <= TPOT_SECONDS
            for one in self.answers
        ]
        return sum(good) / max(len(good), 1)

    @property
    def failed(self) -> int:
        """Requests without an answer of 200."""
        return sum(one.status != 200 for one in self.answers)

    def most(self, first: float, last: float) -> int:
        """The most replicas between two times."""
        return max((count for at, count in self.replicas if first <= at < last), default=0)

    @property
    def least_after(self) -> int:
        """The fewest replicas after the surge; later the reserve may order more again."""
        return min((count for at, count in self.replicas if at >= self.surge[1]), default=0)


CHECKED = (
    "no request failed",
    "replicas rose in the surge and came back",
)


def run_llm_d_sim(root: Path, *, minutes: float, out: Path, tell: Reporter) -> str:
    """Run it and return the figures. Raises: RigError where something is missed at full length."""
    seconds = minutes * SECONDS_PER_MINUTE
    surge = (SURGE_BEGINS * seconds, SURGE_ENDS * seconds)
    with real_engines(root, ENGINE, tell) as system:
        tell("kubectl apply: a ServingSLO with runtime vllm")
        system.ask(SPEC)
        tell(
            f"{minutes:g} minutes of Poisson clients: {BASE_PER_SECOND:g} requests a second, "
            f"{SURGE_PER_SECOND:g} from second {surge[0]:.0f} to {surge[1]:.0f}"
        )
        began = time.monotonic()
        replicas = tuple(_watch(system, surge, seconds))
        system.clients.stop()
        answers = tuple(sorted(system.clients.answers))
        decisions = system.log_lines("decided")
    figures = SurgeFigures(answers=answers, began=began, surge=surge, replicas=replicas)
    out.mkdir(parents=True, exist_ok=True)
    (out / "llm-d-sim.log").write_text("\n".join([*decisions, ""]), encoding="utf-8")
    full = minutes >= FULL_MINUTES
    file = out / "llm-d-sim.txt"
    return concluded(table(figures), missed(figures), CHECKED, full=full, file=file)


def _watch(
    system: RealEngines, surge: tuple[float, float], seconds: float
) -> Iterable[tuple[float, int]]:
    """Send what is due, show decisions, and yield replicas, until the time is over."""
    began, shown = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        in_surge = surge[0] <= now < surge[1]
        system.clients.rate_per_second = SURGE_PER_SECOND if in_surge else BASE_PER_SECOND
        decisions = system.log_lines("decided")
        for line in decisions[shown:]:
            print(f"{now:6.1f}s {line}", flush=True)
        shown = len(decisions)
        yield now, system.replicas()
        time.sleep(_LOOK_SECONDS)


def missed(figures: SurgeFigures) -> Sequence[str]:
    """What this run did not show; nothing where all went as it should."""
    begins, ends = figures.surge
    before, most = figures.most(0.0, begins), figures.most(begins, ends)
    found = []
    if figures.failed:
        found.append(f"{figures.failed} requests failed")
    if most <= before:
        found.append(f"replicas did not rise: {_replicas(figures)}")
    if figures.least_after > before:
        found.append(f"replicas did not come back: {_replicas(figures)}")
    return tuple(f"llm-d-sim: {one}" for one in found)


def table(figures: SurgeFigures) -> str:
    """The figures for people."""
    begins, ends = figures.surge
    phases = (
        ("before the surge", 0.0, begins),
        ("in the surge", begins, ends),
        ("after it", ends, float("inf")),
        ("all", 0.0, float("inf")),
    )
    kept = 100.0 * figures.in_slo_ratio >= PERCENTILE
    rows = [
        ("requests", f"{len(figures.answers)}, {figures.failed} failed"),
        *((f"TTFT {n}", phase_line(figures.phase(a, b), TTFT_SECONDS)) for n, a, b in phases),
        ("TPOT all", phase_line(figures.phase(0.0, float("inf"), tpot=True), TPOT_SECONDS)),
        ("replicas", _replicas(figures)),
        ("in SLO", f"{figures.in_slo_ratio:.1%}: objective {'kept' if kept else 'missed'}"),
    ]
    return "\n".join(f"{name:<26} {value}" for name, value in rows)


def _replicas(figures: SurgeFigures) -> str:
    begins, ends = figures.surge
    before, most = figures.most(0.0, begins), figures.most(begins, ends)
    return f"{before} before, {most} in the surge, {figures.least_after} after it"


def _tpot_seconds(one: Answered) -> float:
    """Mean time between a request's tokens."""
    return (one.seconds - one.first_seconds) / max(one.output_tokens - 1, 1)
