"""Recordings: what is written can be read, and gives the same decisions again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from servingslo.api.convert import fleet_from_spec
from servingslo.controller.recordings.recording import (
    Header,
    Outcome,
    Recorder,
    observation_line,
    reconciled,
    replay,
)
from servingslo.errors import InvalidInputError
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Limits, Observation, SignalProblem
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.reasons import Reason

NOW = 1_795_262_400.0
LIMITS = Limits(max_step=2)
SPEC = {
    "targetRef": {"kind": "Deployment", "name": "chat"},
    "objectives": [{"metric": "ttft", "percentile": 99, "threshold": "1s"}],
    "replicas": {"min": 2, "max": 4},
}


def _observation(at: float, desired: int = 1) -> Observation:
    ttft = HistogramSample(
        upper_bounds=(0.5, float("inf")), cumulative_counts=(3.0, 4.0), sum=2.5, count=4.0
    )
    engine = EngineSample(
        engine="0",
        gauges_age_seconds=1.0,
        counters_age_seconds=1.0,
        histograms_age_seconds=1.0,
        running=1.0,
        waiting=0.0,
        generation_tokens_total=100.0 + at - NOW,
        prompt_tokens_total=100.0,
        ttft_seconds=ttft,
        finished_total={"stop": 4.0},
    )
    pod = PodSample(name="chat-1", ready=True, ready_for_seconds=600.0, engines=(engine,))
    return Observation(
        time_seconds=at,
        namespace="team",
        name="chat",
        uid="u",
        generation=1,
        desired_replicas=desired,
        current_replicas=desired,
        pods=(pod,),
        problems=(SignalProblem(reason=Reason.SCALER_CONFLICT, detail="x"),) if at < NOW else (),
    )


def _header(**changes) -> Header:
    header = Header(
        uid="u",
        namespace="team",
        name="chat",
        generation=1,
        spec=SPEC,
        limits=LIMITS,
        time_seconds=NOW,
    )
    return replace(header, **changes)


def _live(path: Path) -> list[Decision]:
    """A short life with a write that fails, one that succeeds, and a change of the spec."""
    recorder = Recorder(path)
    state = FleetState()
    targets = fleet_from_spec(SPEC)
    recorder.header(_header())
    decisions = []
    for tick in range(6):
        at = NOW + 15.0 * tick
        if tick == 3:
            changed = {**SPEC, "replicas": {"min": 4, "max": 4}}
            targets = fleet_from_spec(changed)
            recorder.header(_header(spec=changed, carry_on=True, time_seconds=at))
        observation = _observation(at, desired=1 if tick < 2 else 2)
        recorder.observation(observation)
        fleet, state = plan_fleet({"": observation}, targets, LIMITS, state, at)
        decision = fleet.pools[""]
        decisions.append(decision)
        if decision.apply_replicas:
            outcome = Outcome(
                uid="u",
                time_seconds=at + 0.1,
                before=decision.replicas_before or 0,
                after=decision.replicas_after or 0,
                written=tick > 0,
            )
            recorder.outcome(outcome)
            state = reconciled(state, outcome, targets)
    recorder.close()
    return decisions


def test_a_replay_makes_the_same_decisions(tmp_path: Path) -> None:
    """Outcomes of writes and changes of the spec included, nothing differs.

    A field of the spec that is gone, which the API server filled in, is passed over.
    """
    path = tmp_path / "deep" / "recording.jsonl"
    live = _live(path)
    lines = path.read_text().splitlines()
    assert sum('"outcome"' in line for line in lines) >= 2
    assert [entry.decision for entry in replay(lines)] == live
    first = json.loads(lines[0])
    first["header"]["spec"]["batching"] = {"rollout": "Canary"}
    assert [entry.decision for entry in replay([json.dumps(first), *lines[1:]])] == live


def test_a_recording_of_compiled_laws_is_refused_with_the_reason(tmp_path: Path) -> None:
    """What would not be the live decisions is not told as if they were; numpy's are read."""
    path = tmp_path / "recording.jsonl"
    Recorder(path).header(_header())
    (line,) = path.read_text().splitlines()
    assert '"laws":"numpy"' in line
    assert list(replay([line])) == []
    compiled = line.replace('"laws":"numpy"', '"laws":"compiled"')
    with pytest.raises(InvalidInputError, match=r"line 1: header.laws: 'compiled'.*the version"):
        list(replay([compiled]))


def test_an_observation_survives_as_json() -> None:
    """Infinite bucket edges and unknown values come back as they were; JSON stays strict."""
    observation = _observation(NOW)
    line = observation_line(observation)
    json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    header = Recorder(None)
    header.observation(observation)  # without a path nothing happens
    (replayed,) = replay([line], instead=SPEC)
    assert replayed.observation == observation


@pytest.mark.parametrize(
    ("line", "named"),
    [
        pytest.param("not json", "line 1", id="no-json"),
        pytest.param("[]", "line 1", id="no-object"),
        pytest.param('{"namespace": "a"}', "time_seconds is missing", id="missing-field"),
        pytest.param('{"header": {}}', "uid", id="bad-header"),
        pytest.param(observation_line(_observation(NOW)), "header", id="no-header-before"),
    ],
)
def test_a_bad_line_is_named(line: str, named: str) -> None:
    """The number of the line and the field are in the message."""
    with pytest.raises(InvalidInputError, match=named):
        list(replay([line]))
