"""The same traffic through the live rig and through the simulator: are the decisions the same?

Run `python -m tests.validation.closed_loop` from the repository root. It starts a control plane,
Prometheus and simulated engines, lets the operator scale a small fleet at wall-clock speed while
demand rises and falls, and then plays the same requests on the virtual clock, five times: its ticks
are moved within one interval, as nobody chooses them. A step that comes a tick later changes those
after it, so that the five courses differ. The rig's shall not be the odd one out of the six: by the
ticks with equal counts, and by the share in SLO, within a point of one of them. The exit status
tells whether it is.
"""

import argparse
import json
import secrets
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.integration.operator_under_test import Engines, Operator, Tenant, install_chart

from servingslo.api.convert import targets_from_spec
from servingslo.controller.recordings.recording import HEADER, observations
from servingslo.policy.inputs import Limits, Observation, Targets
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.trace_files import write_trace
from servingslo_lab.sim.traces.workloads import RateCourse, generated, uniform_lengths

TICK_SECONDS, SCRAPE_SECONDS = 15.0, 1.0
COLD_START_SECONDS = 30.0
FIRST_REPLICAS, LARGEST = 2, 12
TTFT_SECONDS, TPOT_SECONDS = 1.0, 0.05
QUIET_SECONDS = 60.0
SHARE_TARGET = 0.01
# Evenly within one interval.
MOVED_SECONDS = tuple(TICK_SECONDS * part / 5 for part in range(5))
SPEC = {
    "objectives": [
        {"metric": "ttft", "percentile": 95, "threshold": f"{TTFT_SECONDS:g}s"},
        {"metric": "tpot", "percentile": 95, "threshold": f"{1000 * TPOT_SECONDS:g}ms"},
    ],
    "replicas": {"min": 1, "max": LARGEST},
    "coldStart": f"{COLD_START_SECONDS:g}s",
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What was decided and what came of it. replicas: wanted, by time in seconds."""

    times_seconds: Sequence[float]
    replicas: Sequence[int]
    share_ratio: float


def demand(minutes: float, seed: int) -> Trace:
    """Calm, a ramp to ten times as much, a plateau, and back."""
    seconds = 60.0 * minutes
    course = RateCourse(
        times_seconds=tuple(share * seconds for share in (0.0, 0.15, 0.4, 0.6, 0.75, 1.0)),
        rates_per_second=(2.0, 2.0, 16.0, 16.0, 3.0, 3.0),
    )
    return generated(course, uniform_lengths((100, 2000), (20, 300)), np.random.default_rng(seed))


def live(trace: Trace, folder: Path) -> tuple[Course, list[str], float]:
    """The rig's course, its recording, and when the traffic began in it, in seconds."""
    path, recording = folder / "trace.csv", folder / "recording.jsonl"
    write_trace(trace, path)
    with Rig.start(RigOptions(scrape_interval_seconds=SCRAPE_SECONDS)) as rig:
        rig.add_nodes(2)
        host = Engines(rig)
        rig.configure_prometheus(
            http_sd_url=f"{host.url}/sd", scrape_interval_seconds=SCRAPE_SECONDS
        )
        install_chart(rig)
        operator = Operator(rig, f"--tick-seconds={TICK_SECONDS:g}", f"--record={recording}")
        operator.start()
        tenant = Tenant(rig, rig.create_namespace(f"loop-{secrets.token_hex(4)}"), host)
        tenant.create_deployment(
            replicas=FIRST_REPLICAS, ready_delay=f"{COLD_START_SECONDS - 1:g}s"
        )
        tenant.create_slo(**SPEC)
        time.sleep(QUIET_SECONDS)
        tenant.begin_traffic(
            path, duration_seconds=trace.duration_seconds, ttft_seconds=TTFT_SECONDS,
            tpot_seconds=TPOT_SECONDS,
        )  # fmt: skip
        began = time.time()  # noqa: TID251 - the recording has this clock
        time.sleep(trace.duration_seconds)
        lines = recording.read_text(encoding="utf-8").splitlines()
        time.sleep(QUIET_SECONDS)
        with urllib.request.urlopen(f"{host.url}/stats", timeout=10) as answer:  # noqa: S310
            stats = json.load(answer)
        operator.stop()
    (traffic,) = stats["traffic"].values()
    seen = list(observations(lines))
    course = Course(
        times_seconds=[one.time_seconds - began for one in seen],
        replicas=[one.desired_replicas or 0 for one in seen],
        share_ratio=traffic["in_slo"] / traffic["offered"],
    )
    return course, lines, seen[0].time_seconds - began


class Replayed:
    """The planner with the resource and the bounds of a recording."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._limits = Limits(tick_seconds=TICK_SECONDS)
        self._state = PlannerState()

    def decide(self, observation: Observation) -> Wanted:
        """The replicas that are decided."""
        decision, self._state = plan(
            observation, self._targets, self._limits, self._state, observation.time_seconds
        )
        return Wanted(replicas=decision.replicas_after if decision.apply_replicas else None)


def simulated(trace: Trace, lines: Sequence[str], first_seconds: float) -> Course:
    """The simulator's course; first_seconds: of the first look, from when the traffic began."""
    header = next(json.loads(line)[HEADER] for line in lines if HEADER in json.loads(line))
    targets = targets_from_spec(header["spec"])
    seen = list(observations(lines))
    # The first look is one interval after the simulation begins.
    shift = TICK_SECONDS - first_seconds
    moved = Trace(
        arrival_seconds=trace.arrival_seconds + shift,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        duration_seconds=trace.duration_seconds + shift,
    )
    fleet = FleetSpec(
        engine="l4-small", initial_replicas=FIRST_REPLICAS, max_replicas=LARGEST, drain=False,
        cold_start=ColdStart(mean_seconds=COLD_START_SECONDS, variation_ratio=0.0),
        scrape_interval_seconds=TICK_SECONDS, scrape_lag_seconds=_age_seconds(seen),
    )  # fmt: skip
    result = simulate(fleet, moved, Replayed(targets), seed=0)
    return Course(
        times_seconds=[tick.time_seconds - shift for tick in result.ticks],
        # What was wanted before the decision, as the rig's observations tell.
        replicas=[FIRST_REPLICAS, *(tick.desired for tick in result.ticks[:-1])],
        share_ratio=result.share_in_slo(TTFT_SECONDS, TPOT_SECONDS),
    )


def _age_seconds(seen: Sequence[Observation]) -> float:
    """How old the rig's scrapes were when it looked: the median over all looks and engines."""
    ages = [
        engine.gauges_age_seconds
        for one in seen
        for pod in one.pods
        for engine in pod.engines
        if engine.gauges_age_seconds is not None
    ]
    return float(np.median(ages))


def equal_ratio(one: Course, other: Course) -> float:
    """Share of one's ticks at which the other has the same count."""
    times = np.array(other.times_seconds)
    nearest = [int(np.argmin(np.abs(times - moment))) for moment in one.times_seconds]
    same = [
        count == other.replicas[place] for count, place in zip(one.replicas, nearest, strict=True)
    ]
    return sum(same) / len(same)


def likeness(one: Course, others: Sequence[Course]) -> float:
    """The mean share of ticks with equal counts."""
    return float(np.mean([equal_ratio(one, other) for other in others]))


def agrees(rig: Course, simulations: Sequence[Course]) -> tuple[bool, str]:
    """Whether the rig's course is not the odd one out, and the figures."""
    mine = likeness(rig, simulations)
    theirs = [
        likeness(one, [rig, *(other for other in simulations if other is not one)])
        for one in simulations
    ]
    share = min(abs(rig.share_ratio - one.share_ratio) for one in simulations)
    figures = (
        f"the rig equals the simulator in {100 * mine:.1f} % of {len(rig.replicas)} ticks, "
        f"its runs the rest in {100 * min(theirs):.1f} to {100 * max(theirs):.1f}; "
        f"shares {100 * share:.2f} points apart"
    )
    return mine >= min(theirs) and share <= SHARE_TARGET, figures


def main() -> int:
    """Run both, print both, and say whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the trace and the recording")
    options = parser.parse_args()
    trace = demand(options.minutes, options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rig, lines, first = live(trace, folder)
    simulations = [simulated(trace, lines, first + moved) for moved in MOVED_SECONDS]
    write = sys.stdout.write
    for name, course in (("rig", rig), *(("simulator", one) for one in simulations)):
        write(f"{name:10} {' '.join(map(str, course.replicas))}\n")
        write(f"{name:10} share in SLO {100 * course.share_ratio:.2f} %\n")
    agree, figures = agrees(rig, simulations)
    write(f"{figures}\n")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
