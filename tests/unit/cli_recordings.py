"""A recording for tests of the command line, and the spec that it was made under."""

from servingslo.controller.recordings.recording import Header, Recorder
from servingslo.policy.inputs import Limits

SPEC = {
    "targetRef": {"kind": "Deployment", "name": "llama"},
    "objectives": [
        {"metric": "ttft", "percentile": 99, "threshold": "1s"},
        {"metric": "tpot", "percentile": 95, "threshold": "50ms"},
    ],
    "replicas": {"max": 8},
}


def begun(path, spec=SPEC):
    """A recorder to this file that has written the header, of this spec."""
    recorder = Recorder(path)
    recorder.header(
        Header(
            uid="u1", namespace="inference", name="llama", generation=1, spec=spec,
            limits=Limits(), time_seconds=0.0,
        )
    )  # fmt: skip
    return recorder
