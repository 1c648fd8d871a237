"""The words for the split of the traffic, and what is read of it in a status."""

from dataclasses import replace

import pytest
from tests.unit.policy_world import TICK_SECONDS
from tests.unit.test_explain_pools import combined_fleet
from tests.unit.test_policy_pools_admission import combined
from tests.unit.test_policy_pools_demand import seen_at

from servingslo.cli.decision_document import fleet_of
from servingslo.explain.pools import fleet_document, fleet_lines
from servingslo.features.variants.composition import SplitUse
from servingslo.policy.pools.demand import learn_demand
from servingslo.policy.pools.division import Division, divide_demand
from servingslo.policy.pools.state import FleetState


@pytest.mark.parametrize(
    ("rule", "words"), [("EvenByPod", "evenly by pod"), ("Observed", "as observed")]
)
def test_the_split_is_named_with_the_share_of_each_pool(rule: str, words: str) -> None:
    """While laws are missing each pool plans for the share that it gets; a status keeps it."""
    split = SplitUse(rule=rule, shares_ratio={"h100": 0.75, "l4": 0.25})
    fleet = replace(combined_fleet(("h100", "l4")), features={"split": split})
    again = fleet_of(fleet_document(fleet), fleet.namespace, fleet.name)
    assert again.features == fleet.features
    for one in (fleet, again):
        assert f"Split: {words}: h100 75.0 %, l4 25.0 %" in list(fleet_lines(one))


@pytest.mark.parametrize(
    ("extra", "words"),
    [(9.0, "other pools serve it for 9 more an hour"), (None, "the other pools do not carry that")],
)
def test_what_a_sold_out_pool_lacks_is_said_with_its_price(extra: float | None, words: str) -> None:
    """Of a status too; nothing is said while nothing is sold out."""
    split = SplitUse(rule="EvenByPod", lacking={"h100": 3}, extra_hourly=extra)
    fleet = replace(combined_fleet(("h100", "l4")), features={"split": split})
    again = fleet_of(fleet_document(fleet), fleet.namespace, fleet.name)
    assert again.features == fleet.features
    assert f"Sold out: h100 lacks 3 replicas; {words}" in list(fleet_lines(again))
    quiet = replace(fleet, features={"split": SplitUse(rule="EvenByPod")})
    assert not any("Sold out" in line for line in fleet_lines(quiet))


def test_a_pool_that_counts_nothing_leaves_the_other_its_own_requests() -> None:
    """Requests that no pod counts are still served there: the other gets no more than before."""
    targets, state = combined(), FleetState()
    for tick in range(1, 9):
        state = learn_demand(targets, state, seen_at(6.0, 6.0), tick * TICK_SECONDS)
    at, blind = 8 * TICK_SECONDS, seen_at(6.0, None)
    counted, _ = divide_demand(targets, state, seen_at(6.0, 6.0), at)
    uncounted, _ = divide_demand(targets, state, blind, at)
    assert counted.features["split"] == SplitUse(
        rule="Observed", shares_ratio={"prefill": 0.5, "decode": 0.5}
    )
    assert uncounted == Division(seen=blind)
