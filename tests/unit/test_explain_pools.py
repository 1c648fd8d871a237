"""A decision over many pools: its words, and that it fits into a status."""

from dataclasses import replace

import pytest
from tests.golden.decisions import SCALE_UP

from servingslo.api.v1alpha1.status import MAX_PACKED_LENGTH
from servingslo.cli.decision_document import fleet_of
from servingslo.explain.changes import change_event, change_line, replica_count_change
from servingslo.explain.conditions.condition import ConditionStatus, ConditionType, Verdict
from servingslo.explain.conditions.derived import verdicts
from servingslo.explain.document import as_dict, summary_line
from servingslo.explain.headline import answer_line
from servingslo.explain.limit_sentences import LIMIT_SENTENCES
from servingslo.explain.pools import (
    fleet_answer,
    fleet_document,
    fleet_lines,
    fleet_summary_line,
    fleet_text,
    fleet_verdicts,
)
from servingslo.explain.text import text
from servingslo.packing import packed, unpacked
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.pools.decision import FleetDecision, GpuUse
from servingslo.policy.pools.inputs import MOST_POOLS, Role
from servingslo.reasons import Reason

NAMES = tuple(f"card-{place}" for place in range(MOST_POOLS))


def combined_fleet(names: tuple[str, ...] = NAMES) -> FleetDecision:
    """The same decision for each of several Combined pools."""
    return FleetDecision(
        time_seconds=SCALE_UP.time_seconds,
        namespace=SCALE_UP.namespace,
        name=SCALE_UP.name,
        pools={name: replace(SCALE_UP, pool=name) for name in names},
        roles=dict.fromkeys(names, Role.COMBINED),
        action=SCALE_UP.action,
        reason=SCALE_UP.reason,
        binding_pool=names[0],
        gpus=GpuUse(before=6, after=10, wanted=12, most=10),
    )


def verdicts_of(fleet: FleetDecision) -> dict[str, dict[ConditionType, Verdict]]:
    """Those on each pool."""
    return {name: verdicts(one) for name, one in fleet.pools.items()}


def test_the_whole_names_gpus() -> None:
    """Of at most so many."""
    told = list(fleet_lines(combined_fleet(("h100", "l4"))))
    assert "GPUs: 6->10 of at most 10; the demand asks for 12" in told
    before, after = SCALE_UP.replicas_before, SCALE_UP.replicas_after
    change = f"h100 {before}->{after}/l4 {before}->{after}"
    assert f"Decision: scale-up, {change} ({SCALE_UP.reason.value} of h100)" in told


def test_lines_name_pools_in_the_order_of_the_spec() -> None:
    """Decisions are in the order of their writes, which changes; a line that is cut says so."""
    fleet = combined_fleet(("h100", "l4"))
    written_last_first = {name: fleet.pools[name] for name in ("l4", "h100")}
    fleet = replace(fleet, pools=written_last_first)
    change = f"{SCALE_UP.replicas_before}->{SCALE_UP.replicas_after}"
    assert f"h100 {change}/l4 {change}" in fleet_summary_line(fleet)
    assert fleet_answer(fleet, verdicts_of(fleet)).startswith("h100: ")
    whole = combined_fleet()
    long = fleet_answer(whole, verdicts_of(whole))
    assert len(long) == 512
    assert long.endswith("…")


def test_met_objectives_are_named_with_the_part_of_each_pool() -> None:
    """A pool's own threshold is not the promise: SLOMet names both pools in their order."""
    fleet = combined_fleet(("prefill", "decode"))
    slow, fast = (
        replace(
            SCALE_UP,
            objectives=tuple(
                replace(one, threshold_seconds=threshold, share_low_ratio=1.0, share_high_ratio=1.0)
                for one in SCALE_UP.objectives
            ),
        )
        for threshold in (1.9, 0.1)
    )
    fleet = replace(fleet, pools={"decode": fast, "prefill": slow})
    found = fleet_verdicts(fleet, verdicts_of(fleet))[ConditionType.SLO_MET]
    assert found.status is ConditionStatus.TRUE, found
    first, second = found.message.split("; decode: ")
    assert first.startswith("prefill: ")
    assert "1.9s: met" in first
    assert "0.1s: met" in second


def test_a_pool_without_requests_hides_no_met_objective() -> None:
    """Every request goes to the other one; without any the resource has no traffic either."""
    fleet = combined_fleet(("h100", "l4"))

    def served(share: float | None) -> Decision:
        seen = {"share_low_ratio": share, "share_high_ratio": share}
        return replace(
            SCALE_UP, objectives=tuple(replace(one, **seen) for one in SCALE_UP.objectives)
        )

    for share, reason in (1.0, Reason.WITHIN_OBJECTIVES), (None, Reason.NO_TRAFFIC):
        fleet = replace(fleet, pools={"l4": served(None), "h100": served(share)})
        found = fleet_verdicts(fleet, verdicts_of(fleet))[ConditionType.SLO_MET]
        assert found.reason is reason
        assert "no requests" in found.message


def test_a_decision_on_as_many_pools_as_there_may_be_fits_into_a_status() -> None:
    """Each pool has a smaller part; nothing of the whole is lost."""
    fleet = combined_fleet()
    long = replace(SCALE_UP, steps=SCALE_UP.steps * 20)
    document = fleet_document(fleet, {name: replace(long, pool=name) for name in NAMES})
    assert len(packed(document)) <= MAX_PACKED_LENGTH
    again = fleet_of(unpacked(packed(document)), fleet.namespace, fleet.name)
    assert (again.gpus, again.roles) == (fleet.gpus, fleet.roles)
    assert again.replicas_after == fleet.replicas_after
    assert fleet_text(again).count("\nObjective ") > 0


def test_a_single_target_is_told_by_its_own_decision_alone() -> None:
    """Document, history, answer, conditions and text have no word of a fleet."""
    fleet = FleetDecision.of(SCALE_UP)
    told = verdicts_of(fleet)
    assert fleet_verdicts(fleet, told) == verdicts(SCALE_UP)
    assert fleet_answer(fleet, told) == answer_line(SCALE_UP)
    assert fleet_summary_line(fleet) == summary_line(SCALE_UP)
    assert fleet_document(fleet) == as_dict(SCALE_UP)
    read = fleet_of(fleet_document(fleet), fleet.namespace, fleet.name)
    assert read.only is not None
    assert fleet_text(read) == text(read.only)


def test_a_change_names_its_pool_in_line_event_and_key() -> None:
    """Two pools that make the same change are two events."""
    target = ScaleTarget(api_version="apps/v1", kind="Deployment", name="x")
    changes = [
        replica_count_change(replace(SCALE_UP, pool=pool), target) for pool in ("h100", "l4", "")
    ]
    events = [change_event(change) for change in changes if change is not None]
    assert [event.message.partition(":")[0] for event in events[:2]] == ["h100", "l4"]
    assert len({event.key for event in events}) == 3
    assert changes[0] is not None
    assert changes[2] is not None
    assert f"name={SCALE_UP.name} pool=h100 target=" in change_line(changes[0])
    assert "pool=" not in change_line(changes[2])


@pytest.mark.parametrize(
    "reason",
    [
        Reason.POOL_UNSEEN,
        Reason.OTHER_POOL_AWAKE,
        Reason.GPUS_REACHED,
        Reason.LEAST_COST,
        Reason.MOVE_DOES_NOT_PAY,
    ],
)
def test_what_pools_are_held_by_has_a_sentence(reason: Reason) -> None:
    """It is no bare word for the person on call."""
    assert len(LIMIT_SENTENCES[reason].split()) > 4
