"""Recordings of what the simulator does not carry out: features act it out themselves."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servingslo.api.convert import targets_from_spec
from servingslo.controller.recordings.recording import Header, Recorder
from servingslo.policy.inputs import Limits, Targets

ALLOWED = Limits(batching_apply_enabled=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A recording: a spec, and what is acted out with it, each act with a memory of its own."""

    name: str
    spec: Mapping[str, Any]
    acts: tuple[Callable[[Targets, Recorder], None], ...]

    def recorded(self) -> list[str]:
        """The recording, line by line."""
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
