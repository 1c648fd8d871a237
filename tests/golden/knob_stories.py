"""Recordings of knobs that the simulator does not carry out: canaries.

Their cluster is that of the unit tests, where a canary's pod template is acted out. It is needed to
record, and not to replay.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servingslo.api.convert import targets_from_spec
from servingslo.controller.recordings.recording import Header, Outcome, Recorder
from servingslo.explain.changes import Knob
from servingslo.policy.inputs import Limits, Targets

_UNIT = Path(__file__).parents[1] / "unit"
ALLOWED = Limits(batching_apply_enabled=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A recording: a spec, and what is acted out with it, each act with a memory of its own."""

    name: str
    spec: Mapping[str, Any]
    acts: tuple[Callable[[Targets, Recorder], None], ...]

    def recorded(self) -> list[str]:
        """The recording, line by line."""
        sys.path.insert(0, str(_UNIT))
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "recording.jsonl"
                recorder = Recorder(path)
                for act in self.acts:
                    header = Header(
                        uid=self.name,
                        namespace=self.name.split("/")[0],
                        name=self.name.split("/")[1],
                        generation=1,
                        spec=self.spec,
                        limits=ALLOWED,
                        time_seconds=0.0,
                    )
                    recorder.header(header)
                    act(targets_from_spec(self.spec), recorder)
                recorder.close()
                return path.read_text(encoding="utf-8").splitlines()
        finally:
            sys.path.remove(str(_UNIT))


def _canary(targets: Targets, recorder: Recorder, *, slowness: float, seconds: float) -> None:
    """One pod with larger batches, whose steps take `slowness` times as long."""
    import canary_story  # noqa: PLC0415 - only where a recording is made

    told = canary_story.story(targets, slowness=slowness)
    while told.world.now < seconds:
        decision = told.tick()
        recorder.observation(told.observations[-1])
        if decision.batching.apply:
            outcome = Outcome(
                uid="inference/llama",
                time_seconds=decision.time_seconds + 0.1,
                before=decision.batching.current_max_num_seqs or 0,
                after=decision.batching.recommended_max_num_seqs or 0,
                written=True,
                knob=Knob.BATCH_LIMITS,
            )
            recorder.outcome(outcome)


def _kept_canary(targets: Targets, recorder: Recorder) -> None:
    _canary(targets, recorder, slowness=1.0, seconds=800.0)


def _worse_canary(targets: Targets, recorder: Recorder) -> None:
    _canary(targets, recorder, slowness=1.7, seconds=900.0)


_OBJECTIVES = [
    {"metric": "ttft", "percentile": 95, "threshold": "1s"},
    {"metric": "tpot", "percentile": 95, "threshold": "50ms"},
]
_WORKLOAD = {"apiVersion": "apps/v1", "kind": "Deployment"}
STORIES: Mapping[str, Story] = {
    "canary": Story(
        name="inference/llama",
        spec={
            "targetRef": {**_WORKLOAD, "name": "llama"},
            "objectives": _OBJECTIVES,
            "replicas": {"min": 4, "max": 4},
            "batching": {"mode": "Auto"},
        },
        acts=(_kept_canary, _worse_canary),
    ),
}
