"""A change of form leaves every decision about two canaries and new limits of a fleet as it was.

python -m tests.features.batch_limits.test_batch_limits_replay     the decisions anew
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.features.batch_limits.canary_story import story
from tests.golden.knob_stories import Story
from tests.golden.replay_cases import (
    FLEET,
    Case,
    decided,
    differences,
    read_lines,
    write_lines,
)

from servingslo.controller.recordings.recording import Outcome, Recorder
from servingslo.models.engine.service_time import EngineLimits
from servingslo.policy.inputs import Limits, Targets
from servingslo.policy.knobs.decisions import BATCH_LIMITS
from servingslo_lab.sim.traces.workloads import constant

DATA = Path(__file__).parent / "data"
_L4 = FLEET.engine_limits


def _canary(targets: Targets, recorder: Recorder, *, slowness: float, seconds: float) -> None:
    """One pod with larger batches, whose steps take `slowness` times as long."""
    acted = story(targets, slowness=slowness)
    while acted.world.now < seconds:
        decision = acted.tick()
        recorder.observation(acted.observations[-1])
        if decision.batching.apply:
            outcome = Outcome(
                uid="inference/llama",
                time_seconds=decision.time_seconds + 0.1,
                before=decision.batching.current_max_num_seqs or 0,
                after=decision.batching.recommended_max_num_seqs or 0,
                written=True,
                knob=BATCH_LIMITS,
            )
            recorder.outcome(outcome)


def _kept(targets: Targets, recorder: Recorder) -> None:
    _canary(targets, recorder, slowness=1.0, seconds=800.0)


def _worse(targets: Targets, recorder: Recorder) -> None:
    _canary(targets, recorder, slowness=1.7, seconds=900.0)


CASES: Mapping[str, Case | Story] = {
    "canary": Story(
        name="inference/llama",
        spec={
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
            "objectives": [
                {"metric": "ttft", "percentile": 95, "threshold": "1s"},
                {"metric": "tpot", "percentile": 95, "threshold": "50ms"},
            ],
            "replicas": {"min": 4, "max": 4},
            "batching": {"mode": "Auto"},
        },
        acts=(_kept, _worse),
    ),
    "batch-limits": Case(
        course=constant(16.0, 1200.0),
        fleet=replace(
            FLEET,
            initial_replicas=4,
            limits=EngineLimits(
                max_num_seqs=6,
                max_num_batched_tokens=_L4.max_num_batched_tokens,
                kv_capacity_tokens=_L4.kv_capacity_tokens,
            ),
        ),
        spec={"batching": {"mode": "Auto", "minInterval": "10m"}},
        limits=Limits(batching_apply_enabled=True),
    ),
}


def _paths(name: str) -> tuple[Path, Path]:
    """The recording, and its decisions."""
    return DATA / f"{name}.jsonl.gz", DATA / f"{name}.decisions.jsonl.gz"


@pytest.mark.parametrize("name", CASES)
def test_decisions_about_limits_are_as_stored(name: str) -> None:
    """Every field."""
    recording, decisions = map(read_lines, _paths(name))
    found = list(differences(decisions, decided(recording)))
    assert not found, found[:5]


def test_the_canaries_differ_in_what_happens() -> None:
    """Limits are tried, compared, kept and taken back."""
    counted = Counter(json.loads(line)["batching"][0] for line in read_lines(_paths("canary")[1]))
    for kind in (
        "BatchingCanaryStarted", "BatchingCanaryRunning", "BatchingChanged", "BatchingRolledBack",
    ):  # fmt: skip
        assert counted[kind] > 0, (kind, counted)


@pytest.mark.slow("servingslo.controller.recordings", "servingslo.features.batch_limits")
@pytest.mark.parametrize("name", CASES)
def test_the_recording_is_that_of_its_story(name: str) -> None:
    """What is acted out today is what was recorded."""
    assert len(CASES[name].recorded()) == len(read_lines(_paths(name)[0]))


if __name__ == "__main__":
    for one in CASES:
        write_lines(_paths(one)[1], decided(read_lines(_paths(one)[0])))
