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
    path = "/spec/template/spec/containers/0/args"
    patch = [{"op": "add", "path": path, "value": args}]
    audit = [_entry(), _entry(subresource=None, patch=patch)]
    assert differences(audit, [LINE, LIMITS]) == []


def test_of_a_flag_that_stands_twice_the_last_counts():
    """As for the engine: the arguments of the image's own example begin with a limit of theirs."""
    args = ["--max-num-seqs=16", "--max_num_batched_tokens=2048", "--max-num-seqs", "64"]
    path = "/spec/template/spec/containers/0/args"
    patch = [{"op": "add", "path": path, "value": args}]
    assert differences([_entry(subresource=None, patch=patch)], [LIMITS]) == []


def test_a_flag_that_is_removed_sets_nothing():
    """Limits taken back to the engine's defaults are told with their flags, and written without."""
    path = "/spec/template/spec/containers/0/args"
    patch = [{"op": "add", "path": path, "value": ["--model=tiny", "--max-num-seqs=8"]}]
    told = (
        LIMITS.replace("outcome=", "flags_removed=max_num_batched_tokens outcome=")
        .replace("8->64", "64->8")
        .replace("=written", "=rolled-back")
    )
    assert differences([_entry(subresource=None, patch=patch)], [told]) == []
    nothing = [{"op": "remove", "path": path}]
    told = told.replace("=max_num_batched", "=max_num_seqs,max_num_batched")
    assert differences([_entry(subresource=None, patch=nothing)], [told]) == []


def test_a_silent_write_is_found():
    """A write without a line, and a second one beside one line."""
    assert differences([_entry()], [])
    assert differences([_entry(), _entry()], [LINE])


def test_a_line_without_its_write_is_found():
    """A line that claims what was never written, or other values than were written."""
    assert differences([], [LINE])
    assert len(differences([_entry()], [LINE.replace("->5", "->6")])) == 2


def test_what_is_no_change_of_the_operator_counts_as_none():
    """Refused writes, those of others, status and events."""
    audit = [
        _entry(code=422),
        _entry(user="rig-admin"),
        _entry(resource="events", subresource=None),
        _entry(resource="servingslos", subresource="status"),
    ]
    assert differences(audit, [LINE.replace("=written", "=refused")]) == []


def test_an_unanswered_change_may_be_written_or_not():
    """The operator cannot know it, and says so; more writes than lines are still found."""
    perhaps = LINE.replace("=written", "=unanswered")
    assert differences([_entry()], [perhaps]) == []
    assert differences([], [perhaps]) == []
    assert differences([_entry(), _entry()], [perhaps])


def test_one_write_before_a_kill_may_be_untold():
    """Of the second before it, one for each kill."""
    at = datetime.fromisoformat("2026-11-24T12:00:01Z").timestamp()
    killed = f"{KILLED} at_seconds={at:.3f}"
    assert differences([_entry()], [killed]) == []
    assert differences([_entry(), _entry()], [killed]) != []
    assert differences([_entry()], [f"{KILLED} at_seconds={at + 2:.3f}"]) != []


def test_a_limit_in_a_variable_is_told_with_the_other():
    """The variable alone is written; another value than was told is found."""
    path = "/spec/template/spec/containers/0/env/1"
    patch = [{"op": "replace", "path": path, "value": {"name": "MAX_NUM_SEQS", "value": "64"}}]
    assert differences([_entry(subresource=None, patch=patch)], [LIMITS]) == []
    patch[0]["value"]["value"] = "65"
    assert differences([_entry(subresource=None, patch=patch)], [LIMITS]) != []


def test_a_flag_that_names_a_variable_has_no_value_of_its_own():
    """The variable is written in the same patch as the other limit's flag."""
    container = "/spec/template/spec/containers/0"
    variable = {"name": "MAX_NUM_SEQS", "value": "64"}
    flags = ["--max-num-seqs=$(MAX_NUM_SEQS)", "--max-num-batched-tokens=2048"]
    patch = [
        {"op": "replace", "path": f"{container}/env/1", "value": variable},
        {"op": "add", "path": f"{container}/args", "value": flags},
    ]
    assert differences([_entry(subresource=None, patch=patch)], [LIMITS]) == []
    variable["value"] = "65"
    assert differences([_entry(subresource=None, patch=patch)], [LIMITS]) != []


def test_weights_of_a_route_are_told_as_a_share():
    """Other weights than were told are found; the owner's weights, put back, are a share of 0."""
    record = "/metadata/annotations/servingslo.dev~1weights"
    weight = "/spec/rules/0/backendRefs/{}/weight"
    patch = [
        {"op": "add", "path": record, "value": json.dumps({"former": [3, 0]})},
        {"op": "add", "path": weight.format(0), "value": 2700},
        {"op": "add", "path": weight.format(1), "value": 300},
    ]
    told = (
        "2026-11-24 12:00:00 INFO changed namespace=n name=chat target=HTTPRoute/chat "
        "knob=route-weights fallback_thousandths=50->100 outcome=written reason=DegradationRaised"
    )
    written = {"resource": "httproutes", "subresource": None}
    assert differences([_entry(**written, patch=patch)], [told]) == []
    patch[2]["value"] = 600
    assert len(differences([_entry(**written, patch=patch)], [told])) == 2
    back = [
        {"op": "remove", "path": record},
        {"op": "add", "path": weight.format(0), "value": 3},
        {"op": "add", "path": weight.format(1), "value": 0},
    ]
    told = told.replace("50->100", "100->0")
    assert differences([_entry(**written, patch=back)], [told]) == []


def test_lanes_told_as_one_change_are_written_one_by_one():
    """Each in the policy of its class; a lane that is not written, or otherwise, is found."""
    told = (
        "2026-11-24 12:00:00 INFO changed namespace=n name=chat "
        "target=BackendTrafficPolicy/fast,slow knob=lanes lane_chat=40->44 lane_job=unknown->8 "
        "outcome=written reason=LimitSet"
    )
    fast, slow = _lane("fast", 44), _lane("slow", 8)
    assert differences([slow, fast], [told]) == []
    assert len(differences([fast], [told])) == 1
    assert len(differences([fast, _lane("slow", 9)], [told])) == 2
    opened = told.replace("40->44", "44->unknown").replace("unknown->8", "8->unknown")
    assert differences([_lane("fast", None), _lane("slow", None)], [opened]) == []


def _lane(policy, bound):
    path = "/spec/circuitBreaker/maxParallelRequests"
    change = {"op": "remove"} if bound is None else {"op": "add", "value": bound}
    return _entry(
        resource="backendtrafficpolicies",
        subresource=None,
        name=policy,
        patch=[{"path": path, **change}],
    )
