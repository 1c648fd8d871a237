"""What is told of two decisions, word for word.

To refresh after a deliberate change: SERVINGSLO_GOLDEN=write pytest tests/golden/test_explain_*.py
"""

import json
import os
from pathlib import Path

import pytest
from tests.golden.decisions import BLIND, NOON_SECONDS, SCALE_UP

from servingslo.explain.changes import change_event, replica_count_change
from servingslo.explain.conditions.derived import conditions
from servingslo.explain.document import as_dict
from servingslo.explain.events import events
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.policy.inputs import ScaleTarget

TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama-chat")
DATA = Path(__file__).parent / "data"
REFRESH = "SERVINGSLO_GOLDEN=write pytest tests/golden/test_explain_renderings.py"


def _check(name: str, rendered: str) -> None:
    path = DATA / name
    if os.environ.get("SERVINGSLO_GOLDEN") == "write":
        path.write_text(rendered, encoding="utf-8")
    assert rendered == path.read_text(encoding="utf-8"), f"refresh with: {REFRESH}"


def test_the_log_line_is_the_documented_one():
    """The example of the documentation, byte for byte."""
    assert log_line(SCALE_UP) == (
        "decided namespace=inference name=llama-chat action=scale-up replicas=3->5 "
        "reason=KVCacheBound binding=kv-cache "
        'need="utilization:4 kv-cache:5 ttft:4" arrival=41.2/s '
        "forecast=48.6/s@120s offered=47.2/s admitted_now=33/s refused=14.2/s retried=6.02/s "
        "predicted_ttft_p99=0.38s observed_ttft_p99=0.91s "
        "batching=BatchingRecommended max_num_seqs=64->96 admitted=33.4/s in_flight_limit=57 "
        "age=4s"
    )


def test_the_log_line_of_a_blind_hold_leaves_out_what_is_unknown():
    """A hold shows one count, and nothing is invented."""
    assert log_line(BLIND) == (
        "decided namespace=inference name=llama-chat action=hold replicas=5 "
        'reason=PrometheusUnavailable detail="no answer within 5 s"'
    )


@pytest.mark.parametrize(
    ("name", "decision"),
    [pytest.param("scale_up", SCALE_UP, id="scale-up"), pytest.param("blind", BLIND, id="blind")],
)
def test_text_and_document_read_as_reviewed(name, decision):
    """The explanation for people and the document in status do not change by accident."""
    _check(f"explain_{name}.txt", text(decision) + "\n")
    document = json.dumps(as_dict(decision), indent=1, ensure_ascii=False)
    _check(f"explain_{name}.json", document + "\n")


def test_conditions_and_events_read_as_reviewed():
    """What status and events say when a busy workload goes blind, in one table."""
    first = conditions(SCALE_UP, generation=3, now_seconds=NOON_SECONDS)
    second = conditions(BLIND, first, generation=3, now_seconds=NOON_SECONDS + 300)
    lines = [
        f"{c.last_transition_seconds - NOON_SECONDS:>4.0f} {c.type} {c.status} {c.reason}: "
        f"{c.message}"
        for condition_set in (first, second)
        for c in condition_set
    ]
    lines += [
        f"event {event.type} {event.reason} [{event.key}]: {event.message}"
        for event in (
            *events(SCALE_UP, None),
            change_event(replica_count_change(SCALE_UP, TARGET)),
            *events(BLIND, SCALE_UP),
            *events(SCALE_UP, BLIND),
        )
    ]
    _check("explain_conditions.txt", "\n".join(lines) + "\n")
