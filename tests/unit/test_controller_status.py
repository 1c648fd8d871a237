"""The status: what is in it, and when it is worth a write."""

from dataclasses import replace
from typing import Any

import pytest
from tests.golden.decisions import BLIND, NOON_SECONDS, SCALE_UP

from servingslo.api.v1alpha1 import ServingSLOStatus
from servingslo.controller.reporting.pool_status import target_line
from servingslo.controller.reporting.status import (
    changed_fields,
    conditions_field,
    conditions_of,
    decision_lines,
    decision_record,
    is_material,
    status_fields,
)
from servingslo.controller.reporting.status_writer import merge_patch
from servingslo.explain.conditions.derived import conditions
from servingslo.packing import packed
from servingslo.policy.decision import Decision
from servingslo.reasons import Action, Reason

LATER = NOON_SECONDS + 100.0


def _fields(decision: Decision) -> dict[str, Any]:
    return status_fields(decision, generation=3, last_batch_change_seconds=None)


def _conditions(decision: Decision) -> list[Any]:
    return conditions_field(conditions(decision, generation=3, now_seconds=NOON_SECONDS))


@pytest.mark.parametrize("decision", [SCALE_UP, BLIND], ids=["busy", "blind"])
def test_every_status_fits_the_schema(decision: Decision) -> None:
    """What is written is what the CRD describes."""
    known = {key: value for key, value in _fields(decision).items() if value is not None}
    ServingSLOStatus.model_validate({**known, "conditions": _conditions(decision)})


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        pytest.param({"targetRef": {"name": "llama"}}, "llama", id="single"),
        pytest.param(
            {"pools": [{"targetRef": {"name": name}} for name in ("h100", "l40s", "spot")]},
            "h100 + 2 more",
            id="pools",
        ),
        pytest.param({"pools": [{"name": "h100"}]}, None, id="none-named"),
        pytest.param({"anything": 1}, None, id="of-another-schema"),
    ],
)
def test_the_target_of_a_row_is_the_first_and_how_many_more(
    spec: dict[str, Any], shown: str | None
) -> None:
    """`kubectl get` has one cell for one target or several."""
    assert target_line(spec) == shown


def test_the_counts_are_those_of_the_decision() -> None:
    """Current, ready and desired stand side by side."""
    replicas = _fields(SCALE_UP)["replicas"]
    assert replicas == {"current": 3, "ready": 3, "desired": 5}


@pytest.mark.parametrize("reason", [Reason.RECOMMEND_ONLY, Reason.KILL_SWITCH])
def test_advice_is_shown_as_desired(reason: Reason) -> None:
    """Somebody who tries the operator sees what it would set, beside what there is."""
    advice = replace(SCALE_UP, limited_by=reason, replicas_after=3, apply_replicas=False)
    assert _fields(advice)["replicas"] == {"current": 3, "ready": 3, "desired": 5}
    assert _fields(advice)["predicted"] == _fields(SCALE_UP)["predicted"]


def test_nothing_is_desired_while_paused() -> None:
    """A paused resource has no wish."""
    paused = replace(
        SCALE_UP,
        limited_by=Reason.PAUSED,
        replicas_after=3,
        recommended_replicas=None,
        apply_replicas=False,
    )
    assert "desired" not in _fields(paused)["replicas"]


def test_a_refused_write_shows_the_count_that_stayed() -> None:
    """Desired is what was really ordered."""
    refused = replace(
        SCALE_UP,
        action=Action.HOLD,
        replicas_after=3,
        limited_by=Reason.WRITE_FAILED,
        apply_replicas=False,
    )
    assert _fields(refused)["replicas"]["desired"] == 3


def test_conditions_survive_a_round_trip() -> None:
    """What a restarted operator reads from a status is what was written, times included."""
    written = conditions(SCALE_UP, generation=3, now_seconds=NOON_SECONDS)
    status = {"observedGeneration": 3, "conditions": conditions_field(written)}
    assert conditions_of(status, now_seconds=LATER) == written


def test_unknown_conditions_are_left_out() -> None:
    """A status of another version does not stop this one."""
    status = {"conditions": [{"type": "Novel", "status": "True", "reason": "Ready"}]}
    assert conditions_of(status, now_seconds=LATER) == ()


def test_an_unchanged_world_writes_nothing() -> None:
    """The same decision again leaves no field to write, however late."""
    before = _fields(SCALE_UP)
    assert changed_fields(before, dict(before), seconds_since_write=1e6) == {}


@pytest.mark.parametrize(
    ("rate", "seconds", "written"),
    [
        pytest.param(1.05, 1e6, False, id="noise"),
        pytest.param(2.0, 1.0, False, id="drift-too-soon"),
        pytest.param(2.0, 100.0, True, id="drift"),
    ],
)
def test_measurements_are_written_when_they_drifted(
    rate: float, seconds: float, written: bool
) -> None:
    """A rate is written once it moved beyond noise, and not with every tick."""
    arrivals = SCALE_UP.demand.arrival_rate_per_second
    assert arrivals is not None
    demand = replace(SCALE_UP.demand, arrival_rate_per_second=arrivals * rate)
    after = _fields(replace(SCALE_UP, demand=demand))
    changed = changed_fields(_fields(SCALE_UP), after, seconds_since_write=seconds)
    assert ("observed" in changed) is written


def test_measurements_ride_along_with_what_matters() -> None:
    """A new count is written at once, with the numbers of the same moment."""
    demand = replace(SCALE_UP.demand, arrival_rate_per_second=99.0)
    after = _fields(replace(SCALE_UP, demand=demand, replicas_after=6))
    changed = changed_fields(_fields(SCALE_UP), after, seconds_since_write=0.0)
    assert {"replicas", "observed"} <= set(changed)


def test_a_message_alone_is_not_written() -> None:
    """Messages of conditions carry numbers that jitter; Ready names pods, which do not."""
    before = {"conditions": _conditions(SCALE_UP)}
    jitter = [
        entry if entry["type"] == "Ready" else {**entry, "message": "other"}
        for entry in before["conditions"]
    ]
    turned = [{**entry, "reason": "Other"} for entry in before["conditions"]]
    assert changed_fields(before, {"conditions": jitter}, seconds_since_write=1e6) == {}
    assert changed_fields(before, {"conditions": turned}, seconds_since_write=0.0)
    named = [{**entry, "message": "failing: llama-7 (OOMKilled)"} for entry in before["conditions"]]
    assert changed_fields(before, {"conditions": named}, seconds_since_write=0.0)


def test_counts_of_plans_alone_are_not_written_and_other_limits_are() -> None:
    """What a plan needs follows demand; the limits that it is for do not."""
    before = _fields(SCALE_UP)
    plan = before["batching"]["recommended"]
    assert (plan["replicas"], plan["inFlightLimit"]) == (4, 71)

    def written(**changes: int) -> bool:
        batching = {**before["batching"], "recommended": {**plan, **changes}}
        after = {**before, "batching": batching}
        return bool(changed_fields(before, after, seconds_since_write=0.0))

    assert not written(replicas=3, inFlightLimit=80)
    assert written(maxNumSeqs=97)


def test_costs_are_told_where_there_is_a_price() -> None:
    """Amounts with three digits, in the currency of the price; nothing without one."""
    assert _fields(SCALE_UP)["cost"] == {
        "currency": "USD",
        "perHour": 12.5,
        "perMillionTokens": 0.399,
        "perMillionTokensWithPrompts": 0.0617,
        "savedPerHour": 2.5,
    }
    assert _fields(BLIND)["cost"] is None


def test_a_field_that_became_unknown_is_removed() -> None:
    """An old prediction does not outlive the model that made it."""
    before = {"predicted": {"ttftSeconds": 1.0}, "replicas": {"current": 1}}
    after = {"predicted": None, "replicas": {"current": 2}}
    changed = changed_fields(before, after, seconds_since_write=0.0)
    assert merge_patch(before, changed) == {"predicted": None, "replicas": {"current": 2}}


def test_a_merge_patch_leaves_nothing_behind() -> None:
    """Applied as RFC 7396 says, the patch turns the old object into the new one."""
    before = {"a": {"x": 1, "y": {"z": 2, "w": 3}}, "list": [1]}
    after = {"a": {"y": {"z": 5}, "v": 6}, "list": [2, 3]}

    def apply(target: Any, patch: Any) -> Any:
        if not isinstance(patch, dict):
            return patch
        merged = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = apply(merged.get(key), value)
        return merged

    assert apply(before, merge_patch(before, after)) == after


def test_three_lines_are_kept_newest_first() -> None:
    """The history is bounded, and the newest entry is the first."""
    lines: list[str] = []
    for number in range(12):
        lines = decision_lines(f"line {number}", lines)
    assert lines == [f"line {number}" for number in range(11, 8, -1)]


def test_the_schema_accepts_the_history_of_a_former_version() -> None:
    """Its nine lines are valid while it still leads under the new CRD; the next write has three."""
    lines = [f"line {number}" for number in range(9)]
    status = ServingSLOStatus.model_validate({"decisions": lines})
    assert decision_lines("line 9", status.decisions) == ["line 9", "line 0", "line 1"]


def test_only_the_time_of_a_decision_counts_as_a_change() -> None:
    """The packed document has numbers that differ on every tick."""
    noon, later = "2026-11-21T12:00:00Z", "2026-11-21T12:00:15Z"
    before = {"lastDecision": decision_record({"reason": "DemandMet", "n": 1}, noon)}
    after = {"lastDecision": decision_record({"reason": "DemandMet", "n": 2}, noon)}
    document = packed({"reason": "DemandMet", "n": 1})
    assert before["lastDecision"] == {"time": noon, "document": document}
    assert not is_material(before, after)
    assert is_material(before, {"lastDecision": decision_record({"reason": "Idle"}, later)})
