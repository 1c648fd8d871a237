"""The comparison of the audit log with the operator's own: it finds what it is there to find."""

import json
from datetime import datetime

from tests.integration.audit import OPERATOR_USER, differences
from tests.integration.operator_under_test import KILLED

LINE = (
    "2026-11-24 12:00:00 INFO changed namespace=n name=chat target=Deployment/chat knob=replicas "
    "replicas=3->5 outcome=written saves_replicas=-2 reason=TTFTBound"
)
LIMITS = (
    "2026-11-24 12:00:00 INFO changed namespace=n name=chat target=Deployment/chat "
    "knob=batch-limits max_num_seqs=8->64 max_num_batched_tokens=2048 outcome=written reason=x"
)


def _entry(
    *,
    resource="deployments",
    subresource="scale",
    code=200,
    user=OPERATOR_USER,
    patch=None,
    name="chat",
):
    reference = {"resource": resource, "namespace": "n", "name": name}
    if subresource:
        reference["subresource"] = subresource
    body = [
        {"op": "test", "path": "/spec/replicas", "value": 3},
        {"op": "add", "path": "/spec/replicas", "value": 5},
    ]
    return json.dumps(
        {
            "user": {"username": user},
            "stage": "ResponseComplete",
            "stageTimestamp": "2026-11-24T12:00:00.500000Z",
            "responseStatus": {"code": code},
            "objectRef": reference,
            "requestObject": patch or body,
        }
    )


def test_a_write_with_its_line_is_in_order():
    """One write, one line with the same values; limits are read from the arguments patched."""
    args = ["--model=tiny", "--max-num-batched-tokens", "2048", "--max-num-seqs=64"]
    path = "/spec/template/spec/containers/0"
    patch = [{"op": "replace", "path": path, "value": {"name": "vllm", "args": args}}]
    audit = [_entry(), _entry(subresource=None, patch=patch)]
    assert differences(audit, [LINE, LIMITS]) == []


def test_a_silent_write_is_found():
    """A write without a line, and a second one beside one line."""
    assert differences([_entry()], [])
    assert differences([_entry(), _entry()], [LINE])


def test_a_line_without_its_write_is_found():
    """A line that claims what was never written, or other values than were written."""
    assert differences([], [LINE])
    assert len(differences([_entry()], [LINE.replace("->5", "->6")])) == 2


def test_one_write_before_a_kill_may_be_untold():
    """Of the second before it, one for each kill."""
    at = datetime.fromisoformat("2026-11-24T12:00:01Z").timestamp()
    killed = f"{KILLED} at_seconds={at:.3f}"
    assert differences([_entry()], [killed]) == []
    assert differences([_entry(), _entry()], [killed]) != []
    assert differences([_entry()], [f"{KILLED} at_seconds={at + 2:.3f}"]) != []
