"""A change of form leaves every decision about two canaries as it was.

python -m tests.features.batch_limits.test_canary_replay     the decisions anew
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.features.batch_limits.canary_story import story
from tests.golden.knob_stories import Story
from tests.golden.replay_cases import decided, differences, read_lines, write_lines

from servingslo.controller.recordings.recording import Outcome, Recorder
from servingslo.policy.inputs import Targets
from servingslo.policy.knobs.decisions import BATCH_LIMITS

DATA = Path(__file__).parent / "data"
RECORDING, DECISIONS = DATA / "canary.jsonl.gz", DATA / "canary.decisions.jsonl.gz"


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


STORY = Story(
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
)


def test_decisions_about_limits_are_as_stored() -> None:
    """Every field, and each kind of them: tried, compared, kept and taken back."""
    before = read_lines(DECISIONS)
    found = list(differences(before, decided(read_lines(RECORDING))))
    assert not found, found[:5]
    counted = Counter(json.loads(line)["batching"][0] for line in before)
    for kind in (
        "BatchingCanaryStarted", "BatchingCanaryRunning", "BatchingChanged", "BatchingRolledBack",
    ):  # fmt: skip
        assert counted[kind] > 0, (kind, counted)


@pytest.mark.slow("servingslo.controller.recordings", "servingslo.features.batch_limits")
def test_the_recording_is_that_of_its_story() -> None:
    """What is acted out today is what was recorded."""
    assert len(STORY.recorded()) == len(read_lines(RECORDING))


if __name__ == "__main__":
    write_lines(DECISIONS, decided(read_lines(RECORDING)))
