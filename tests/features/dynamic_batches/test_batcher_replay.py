"""A change of form leaves every decision about a real course of limits as it was.

python -m tests.features.dynamic_batches.test_batcher_replay     the decisions anew
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.features.dynamic_batches.test_policy_batcher_limits import Server, World
from tests.golden.knob_stories import Story
from tests.golden.replay_cases import differences, read_lines, told, write_lines

from servingslo.controller.recordings.recording import HEADER, Recorder, replay
from servingslo.features.dynamic_batches.servers import batcher_of
from servingslo.policy.inputs import Observation, Targets

DATA = Path(__file__).parent / "data"
RECORDING, DECISIONS = DATA / "triton.jsonl.gz", DATA / "triton.decisions.jsonl.gz"


def _acted(targets: Targets, recorder: Recorder) -> None:
    """Batches of four are kept, a pod starts anew, and batches of eight prove slow."""
    world = World(targets=targets)
    given = world._observed

    def observed() -> Observation:
        observation: Observation = given()
        recorder.observation(observation)
        return observation

    world._observed = observed
    for tick in range(110):
        if tick == 40:
            world.servers["rank-1"] = Server(age=20.0)
            world.slowed, world.harmed_above = 2.0, 4
        world.tick()


STORY = Story(
    name="team/rank",
    spec={
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "rank"},
        "objectives": [{"metric": "latency", "percentile": 95, "threshold": "700ms"}],
        "model": "rank",
        "replicas": {"min": 3, "max": 6},
        "batching": {"mode": "Auto", "maxSequences": 16},
        "coldStart": "30s",
    },
    acts=(_acted,),
)


def decided(lines: Sequence[str]) -> list[str]:
    """The decisions on a recording, with those about limits, one line each."""
    since = json.loads(lines[0])[HEADER]["time_seconds"]
    found: list[Mapping[str, object]] = []
    for entry in replay(lines):
        one, more = batcher_of(entry.decision), {}
        if one is not None:
            more["batcher"] = [one.reason.value, one.before, one.after, one.pods, one.puts_back]
        found.append({**told(entry.decision, since), **more})
    return [json.dumps(one) for one in found]


def test_decisions_about_limits_are_as_stored() -> None:
    """Every field, and each kind of them: tried, compared, kept and taken back."""
    before = read_lines(DECISIONS)
    found = list(differences(before, decided(read_lines(RECORDING))))
    assert not found, found[:5]
    counted = Counter(json.loads(line).get("batcher", [""])[0] for line in before)
    for kind in (
        "BatchingCanaryStarted", "BatchingCanaryRunning", "BatchingChanged", "BatchingRolledBack",
    ):  # fmt: skip
        assert counted[kind] > 0, (kind, counted)


@pytest.mark.slow("servingslo.controller.recordings", "servingslo.features.dynamic_batches")
def test_the_recording_is_that_of_its_story() -> None:
    """What is acted out today is what was recorded."""
    assert len(STORY.recorded()) == len(read_lines(RECORDING))


if __name__ == "__main__":
    write_lines(DECISIONS, decided(read_lines(RECORDING)))
