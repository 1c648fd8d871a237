"""The words for the split of the traffic, and what is read of it in a status."""

from dataclasses import replace

import pytest
from tests.unit.test_explain_pools import combined_fleet

from servingslo.cli.decision_document import fleet_of
from servingslo.explain.pools import fleet_document, fleet_lines
from servingslo.features.variants.composition import SplitUse


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
