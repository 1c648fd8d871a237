"""Eleven short recordings, and what the planner decided in each.

    make golden                                     the decisions anew, from the recordings
    python -m tests.golden.replay_cases --record    the recordings too

A recording is what the operator would have recorded of simulated fleets: header, observations,
outcomes of writes.
"""

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from servingslo.api.convert import fleet_from_spec
from servingslo.controller.recordings.recording import (
    HEADER,
    Header,
    Outcome,
    Recorder,
    reconciled,
    replay,
)
from servingslo.estimation.sample import GatewaySample
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation, SignalProblem
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ClientSpec, ColdStart, FleetSpec, SlowPods
from servingslo_lab.sim.fleets.pods import WORKLOAD_NAME
from servingslo_lab.sim.production import limits_wanted
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import (
    RateCourse,
    constant,
    flash_crowd,
    generated,
    ramp,
    uniform_lengths,
)

FOLDER = Path(__file__).parent / "data" / "replays"
COMMAND = "make golden"
NOON_SECONDS = 1_795_262_400.0
TALK = uniform_lengths((100, 900), (20, 200))
DOCUMENTS = uniform_lengths((1_500, 6_000), (8, 40))
SPEC: Mapping[str, Any] = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": WORKLOAD_NAME},
    "objectives": [
        {"metric": "ttft", "percentile": 95, "threshold": "1s"},
        {"metric": "tpot", "percentile": 95, "threshold": "50ms"},
    ],
    "replicas": {"min": 1, "max": 8},
}
FLEET = FleetSpec(
    engine="l4-small", initial_replicas=2, cold_start=ColdStart(mean_seconds=60.0), max_replicas=8
)
_DEFAULTS = Limits()
Seen = Callable[[Observation, Trace], Observation]


def as_seen(observation: Observation, _trace: Trace) -> Observation:
    """Everything is seen."""
    return observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recording: demand on a fleet, decided by this spec, and what is seen of it.

    refused_writes: numbers of the writes, from 0, that somebody was before. later: fields of the
    spec that change in the middle.
    """

    course: RateCourse
    lengths: Callable[[np.random.Generator, int], Any] = TALK
    fleet: FleetSpec = FLEET
    spec: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = _DEFAULTS
    seen: Seen = as_seen
    longer: bool = False
    refused_writes: tuple[int, ...] = ()
    later: Mapping[str, Any] = field(default_factory=dict)

    def trace(self) -> Trace:
        """The requests; outputs are three times as long in the second half where `longer`."""
        trace = generated(self.course, self.lengths, np.random.default_rng(17))
        late = trace.arrival_seconds > trace.duration_seconds / 2
        factor = np.where(late, 3, 1) if self.longer else 1
        return replace(trace, output_tokens=factor * trace.output_tokens)

    def recorded(self) -> list[str]:
        """The recording, line by line, from the simulator."""
        trace = self.trace()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "recording.jsonl"
            recorder = Recorder(path)
            simulate(self.fleet, trace, RecordedPlanner(self, trace, recorder), seed=5)
            recorder.close()
            return path.read_text(encoding="utf-8").splitlines()


def without_metrics(start: float, end: float) -> Seen:
    """Prometheus does not answer between these times."""
    problem = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="no answer within 5 s")

    def seen(observation: Observation, _trace: Trace) -> Observation:
        if not start <= observation.time_seconds - NOON_SECONDS < end:
            return observation
        pods = tuple(replace(pod, engines=(), gpus=()) for pod in observation.pods)
        return replace(observation, pods=pods, problems=(*observation.problems, problem))

    return seen


def without_limits(observation: Observation, _trace: Trace) -> Observation:
    """Engines whose arguments name no limits."""
    pods = tuple(
        replace(
            pod,
            engines=tuple(
                replace(engine, max_num_seqs=None, max_num_batched_tokens=None)
                for engine in pod.engines
            ),
        )
        for pod in observation.pods
    )
    return replace(observation, pods=pods)


def with_gateway(observation: Observation, trace: Trace) -> Observation:
    """A gateway that counts requests as they arrive, read five seconds ago."""
    at = observation.time_seconds - NOON_SECONDS - 5.0
    count = float(np.searchsorted(trace.arrival_seconds, at))
    gateway = GatewaySample(age_seconds=5.0, requests_total=count, rejected_total=0.0)
    return replace(observation, gateway=gateway)


def steps(*minutes_and_rates: tuple[float, float]) -> RateCourse:
    """The course through these points."""
    times, rates = zip(*minutes_and_rates, strict=True)
    return RateCourse(times_seconds=tuple(60.0 * t for t in times), rates_per_second=rates)


CASES: Mapping[str, Case] = {
    "steady": Case(course=constant(14.0, 720.0)),
    "ramp": Case(
        course=ramp(
            6.0, 32.0, up_seconds=300.0, hold_seconds=60.0, down_seconds=180.0, rest_seconds=120.0
        )
    ),
    "flash": Case(
        course=flash_crowd(
            6.0, 5.0, at_seconds=240.0, rise_seconds=30.0, hold_seconds=180.0,
            duration_seconds=720.0,
        )
    ),
    "bursts": Case(
        course=steps(
            (0, 0.2), (3, 0.2), (3, 6), (5, 6), (5, 0.2), (9, 0.2), (9, 6), (11, 6), (11, 0.2),
            (13, 0.2),
        ),
        lengths=DOCUMENTS,
    ),
    "outage": Case(
        course=steps((0, 12), (6, 12), (6, 20), (14, 20)), seen=without_metrics(240.0, 540.0)
    ),
    "unstated-limits": Case(
        course=steps((0, 8), (4, 8), (6, 30), (12, 30)), seen=without_limits
    ),
    "gateway": Case(
        course=steps((0, 10), (5, 10), (5, 24), (12, 24)), seen=with_gateway,
        spec={"gateway": {"name": "llama"}, "admission": {"mode": "Recommend"}},
    ),
    "stated-law": Case(
        course=constant(12.0, 480.0),
        spec={
            "serviceLaw": {
                "stepFixedSeconds": 0.015, "stepPerSequenceSeconds": 0.00015,
                "prefillPerTokenSeconds": 0.00008, "contextPerTokenSeconds": 0.0000004,
            },
            "objectives": [{"metric": "latency", "percentile": 90, "threshold": "8s"}],
            "coldStart": "90s",
            "cost": {"gpuHourly": 0.8},
        },
    ),
    "retries": Case(
        course=steps((0, 8), (4, 8), (4, 30), (9, 30), (9, 8), (13, 8)),
        fleet=replace(
            FLEET, max_queued=40, clients=ClientSpec(first_token_timeout_seconds=20.0, retries=2)
        ),
    ),
    "longer-outputs": Case(course=constant(10.0, 900.0), longer=True),
    "failing-pods": Case(
        course=steps((0, 10), (5, 10), (10, 20), (14, 20)),
        fleet=replace(
            FLEET, initial_replicas=3, mean_seconds_to_failure=900.0,
            slow_pods=SlowPods(share_ratio=0.3, factor=1.6),
        ),
        spec={"replicas": {"min": 2, "max": 8, "toleratedFailures": 1}},
        refused_writes=(0,),
        later={"replicas": {"min": 2, "max": 6, "toleratedFailures": 0}},
    ),
}  # fmt: skip


@dataclass
class RecordedPlanner:
    """The planner as an autoscaler of the simulator, recorded as the operator records."""

    case: Case
    trace: Trace
    recorder: Recorder
    writes: int = 0
    changed: bool = False

    def __post_init__(self) -> None:
        self.spec = {**SPEC, **self.case.spec}
        self.state = FleetState()
        self._header(NOON_SECONDS)

    def _header(self, now: float, *, carry_on: bool = False) -> None:
        self.targets = fleet_from_spec(self.spec)
        self.recorder.header(
            Header(
                uid=WORKLOAD_NAME, namespace="simulated", name=WORKLOAD_NAME,
                generation=2 if carry_on else 1, spec=self.spec, limits=self.case.limits,
                carry_on=carry_on, time_seconds=now,
            )
        )  # fmt: skip

    def decide(self, observation: Observation) -> Wanted:
        """Plan, write, and record both."""
        half = observation.time_seconds > self.trace.duration_seconds / 2
        now = NOON_SECONDS + observation.time_seconds
        if self.case.later and half and not self.changed:
            self.changed = True
            self.spec = {**self.spec, **self.case.later}
            self._header(now, carry_on=True)
        observation = self.case.seen(replace(observation, time_seconds=now), self.trace)
        self.recorder.observation(observation)
        fleet, self.state = plan_fleet(
            {"": observation}, self.targets, self.case.limits, self.state, now
        )
        decision = fleet.pools[""]
        written = decision.apply_replicas and self._written(decision, now)
        return Wanted(
            replicas=decision.replicas_after if written else None,
            limits=limits_wanted(observation, decision) if decision.batching.apply else None,
        )

    def _written(self, decision: Decision, now: float) -> bool:
        assert decision.replicas_before is not None
        assert decision.replicas_after is not None
        outcome = Outcome(
            uid=WORKLOAD_NAME,
            time_seconds=now + 0.1,
            before=decision.replicas_before,
            after=decision.replicas_after,
            written=self.writes not in self.case.refused_writes,
        )
        self.writes += 1
        self.recorder.outcome(outcome)
        self.state = reconciled(self.state, outcome, self.targets)
        return outcome.written


def told(decision: Decision, since_seconds: float) -> dict[str, object]:
    """What is held of a decision: what it does, why, and the numbers that it rests on."""
    batching, admission, demand = decision.batching, decision.admission, decision.demand
    found = {
        "second": round(decision.time_seconds - since_seconds),
        "action": decision.action.value,
        "replicas": [decision.replicas_before, decision.replicas_after],
        "wanted": decision.recommended_replicas,
        "written": decision.apply_replicas,
        "reason": decision.reason.value,
        "limited_by": None if decision.limited_by is None else decision.limited_by.value,
        "binding": None if decision.binding is None else decision.binding.value,
        "needs": {need.constraint.value: need.replicas for need in decision.needs},
        "rate": _rounded(demand.arrival_rate_per_second),
        "planned": _rounded(demand.forecast_rate_per_second),
        "predicted": [_rounded(one.predicted_seconds) for one in decision.objectives],
        "law": decision.model.source,
        "batching": [
            batching.reason.value, batching.apply, batching.recommended_max_num_seqs,
            batching.recommended_max_num_batched_tokens,
        ],
        "admission": [
            admission.reason.value, admission.queue_limit, admission.in_flight_limit,
        ],
        "metrics": decision.metrics.value,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _rounded(value: float | None) -> float | None:
    """Four digits: what differs beyond them is arithmetic, not a decision."""
    return None if value is None else float(f"{value:.4g}")


def decided(lines: Sequence[str]) -> list[str]:
    """The planner's decisions on a recording, one line each."""
    since = json.loads(lines[0])[HEADER]["time_seconds"]
    return [json.dumps(told(entry.decision, since)) for entry in replay(lines)]


def recording_path(name: str) -> Path:
    """Where the recording of a case lies."""
    return FOLDER / f"{name}.jsonl.gz"


def decisions_path(name: str) -> Path:
    """Where its decisions lie."""
    return FOLDER / f"{name}.decisions.jsonl.gz"


def read_lines(path: Path) -> list[str]:
    """The lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """The same bytes for the same lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text, mtime=0))


def differences(
    before: Sequence[str], now: Sequence[str], but: Collection[str] = ()
) -> Iterator[str]:
    """The fields that differ, decision by decision; but for some that nothing decides."""
    for old, new in zip(before, now, strict=False):
        was, is_ = json.loads(old), json.loads(new)
        differing = (name for name in {**was, **is_} if was.get(name) != is_.get(name))
        names = [name for name in differing if name not in but]
        if names:
            changed = "; ".join(f"{name} {was.get(name)} → {is_.get(name)}" for name in names)
            yield f"at {was['second']} s: {changed}"
    if len(before) != len(now):
        yield f"{len(before)} → {len(now)} decisions"


def main() -> None:
    """Write decisions, and recordings where asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--case", action="append", choices=CASES, help="all without it")
    chosen = parser.parse_args()
    for name in chosen.case or CASES:
        if chosen.record:
            write_lines(recording_path(name), CASES[name].recorded())
        now = decided(read_lines(recording_path(name)))
        path = decisions_path(name)
        changed = list(differences(read_lines(path), now)) if path.exists() else ["new"]
        sys.stdout.write(f"{name}: {len(now)} decisions, {len(changed)} changed\n")
        sys.stdout.flush()
        write_lines(path, now)


if __name__ == "__main__":
    main()
