"""`servingslo demo --scenario triton`: limits that are too low, on real Triton servers.

One model whose file allows batches of two, which are far too small for what comes. The operator
reads and sets limits by the servers' own API, one pod first, and scales replicas as ever.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.demo.engines.system import Engine, RealEngines, real_engines
from servingslo_lab.cli.demo.engines.triton_verdict import (
    CHECKED,
    Answer,
    Phase,
    TritonFigures,
    draw,
    missed,
    table,
)
from servingslo_lab.cli.demo.report import concluded
from servingslo_lab.cli.demo.system import Reporter
from servingslo_lab.errors import RigError
from servingslo_lab.rig.triton import TritonModel, affine, missing_for_triton
from servingslo_lab.rig.triton_pods import infer, max_batch_size, triton_behind

NAME = "rank"
# T(b) = 150 ms + 25 ms·b: full batches of two answer 10 requests per second, of sixteen 29.
MODEL = TritonModel(
    name=NAME, seconds=affine(0.15, 0.025, 16), window_microseconds=5_000, largest_batch=2
)
PERCENTILE, THRESHOLD_SECONDS = 95.0, 0.8
MOST_REPLICAS = 4
FULL_MINUTES = 8.0
BASE_PER_SECOND, SURGE_PER_SECOND = 12.0, 36.0
# Shares of the time: limits of the file alone, then the operator; a surge; and the base again.
ASKED, SURGE_BEGINS, SURGE_ENDS = 0.08, 0.62, 0.8
# What waited before is answered, and latencies are those of the limits, after so many seconds.
SETTLED_SECONDS = 20.0
STARTED_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_TELL_SECONDS = 10.0
ENGINE = Engine(
    name=NAME,
    container={"name": "triton", "image": "tritonserver:2.51"},
    server_at=triton_behind(MODEL),
    question=infer(NAME),
    settings=(
        "engines.ranges[0]=127.0.0.0/8",
        "batching.apply.enabled=true",
        "batching.apply.serversOnly=true",
    ),
    flags=(
        "--engine-range=127.0.0.0/8",
        "--batching-apply=true",
        "--batching-servers-only=true",
    ),
)
SPEC = {
    "model": NAME,
    "objectives": [
        {
            "metric": "latency",
            "percentile": PERCENTILE,
            "threshold": f"{1000 * THRESHOLD_SECONDS:.0f}ms",
        }
    ],
    "replicas": {"min": 1, "max": MOST_REPLICAS},
    "batching": {"mode": "Auto", "maxSequences": 16, "minInterval": "30s"},
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 15}},
}


@dataclass(slots=True)
class Seen:
    """What was seen at each look: seconds, replicas asked for, largest batch by pod."""

    looks: list[tuple[float, int, Mapping[str, int]]] = field(default_factory=list)


def run_triton(root: Path, *, minutes: float, out: Path, tell: Reporter) -> str:
    """Run it and return the figures. Raises: RigError where something is missed at full length."""
    if missing := missing_for_triton():
        raise RigError(f"triton: {missing}")
    seconds, seen = minutes * SECONDS_PER_MINUTE, Seen()
    with real_engines(root, ENGINE, tell) as system:
        tell(f"{minutes:g} minutes of Poisson clients, {BASE_PER_SECOND:g} requests a second")
        began = time.monotonic()
        system.clients.rate_per_second = BASE_PER_SECOND
        _watch(system, seen=seen, seconds=seconds, tell=tell)
        system.clients.stop()
        answers = [
            Answer(one.sent - began, one.seconds, one.status == 200)
            for one in sorted(system.clients.answers)
        ]
        changes = system.log_lines("changed")
    figures = _figures(answers, seen, changes, seconds)
    out.mkdir(parents=True, exist_ok=True)
    text = table(figures)
    (out / "triton.log").write_text("\n".join([*changes, ""]), encoding="utf-8")
    picture = draw(figures, seen.looks, seconds)
    if picture is not None:
        (out / "triton.png").write_bytes(picture)
    full = minutes >= FULL_MINUTES
    return concluded(text, missed(figures), CHECKED, full=full, file=out / "triton.txt")


def _watch(system: RealEngines, *, seen: Seen, seconds: float, tell: Reporter) -> None:
    """Send what is due and look, until the time is over."""
    pods = system.pods
    began, told, asked = time.monotonic(), 0.0, False
    while (now := time.monotonic() - began) < seconds:
        if not asked and now >= ASKED * seconds:
            tell("kubectl apply: a ServingSLO with batching.mode Auto")
            system.ask(SPEC)
            asked = True
        surge = SURGE_BEGINS * seconds <= now < SURGE_ENDS * seconds
        system.clients.rate_per_second = SURGE_PER_SECOND if surge else BASE_PER_SECOND
        replicas = system.replicas()
        found = {pod: max_batch_size(pods.address(pod), NAME) for pod in pods.routed}
        limits = {pod: size for pod, size in found.items() if size is not None}
        seen.looks.append((now, replicas, limits))
        if now - told >= _TELL_SECONDS:
            sizes = ", ".join(map(str, limits.values()))
            print(f"{now:6.1f}s {replicas} replicas, batches of at most {sizes}", flush=True)
            told = now
        time.sleep(_LOOK_SECONDS)


def _figures(
    answers: Sequence[Answer], seen: Seen, changes: Sequence[str], seconds: float
) -> TritonFigures:
    asked, surge = ASKED * seconds, SURGE_BEGINS * seconds
    raised = [at for at, _, limits in seen.looks if limits and min(limits.values()) > 2]
    settled = (raised[0] if raised else seconds) + SETTLED_SECONDS
    before = [one for one in answers if STARTED_SECONDS <= one.at_seconds < asked]
    after = [one for one in answers if settled <= one.at_seconds < surge]
    alone: list[Mapping[str, int]] = [
        limits for _, _, limits in seen.looks if len(set(limits.values())) > 1
    ]
    return TritonFigures(
        percentile=PERCENTILE,
        threshold_seconds=THRESHOLD_SECONDS,
        before=Phase.of(before, THRESHOLD_SECONDS),
        after=Phase.of(after, THRESHOLD_SECONDS),
        surge=Phase.of(
            [one for one in answers if surge <= one.at_seconds < SURGE_ENDS * seconds],
            THRESHOLD_SECONDS,
        ),
        answers=tuple(answers),
        failed=sum(not one.good for one in answers),
        batches=tuple(max(limits.values(), default=0) for _, _, limits in seen.looks),
        most_first=max((_fewer(limits) for limits in alone), default=0),
        replicas=tuple(replicas for _, replicas, _ in seen.looks),
        replicas_of_base=tuple(
            {replicas for at, replicas, _ in seen.looks if settled <= at < surge}
        ),
        changes=sum("knob=dynamic-batching" in line for line in changes),
    )


def _fewer(limits: Mapping[str, int]) -> int:
    """Of pods with two kinds of limits, how many have the larger ones."""
    return sum(size == max(limits.values()) for size in limits.values())
