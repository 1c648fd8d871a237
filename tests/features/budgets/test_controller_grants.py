"""Budgets in the loop: grants, what a resource draws, status, gauges, and what is unknown."""

from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from tests.features.budgets.budget_world import LABELS
from tests.unit.controller_fakes import Operator, record_of
from tests.unit.policy_world import World, stepped

from servingslo.errors import ClusterError
from servingslo.features.budgets.report import shortage_line
from servingslo.features.budgets.sharer import BudgetSharer
from servingslo.features.budgets.sharing import NOBODY, Claim, Names, Share
from servingslo.features.budgets.store import BudgetRecord, budget_record
from servingslo.reasons import Reason

GROWING = stepped((0, 4.0), (600, 40.0))


@dataclass
class FakeBudgets:
    """Budgets that select everything, and what was written into their status."""

    budgets: list[BudgetRecord] | None
    written: list[dict] = field(default_factory=list)
    down: ClusterError | None = None

    def read(self):
        """None while they are not known."""
        return self.budgets

    def selects(self, _budget, _namespace, _labels):
        """All of them."""
        return True

    async def patch_status(self, budget, changed):
        """Keep it."""
        if self.down is not None:
            raise self.down
        self.written.append(dict(changed))


def sharing(store: FakeBudgets) -> partial:
    """What shares these budgets, for an operator."""
    return partial(BudgetSharer, store=store)


def store_of(operator: Operator) -> FakeBudgets:
    """The budgets of an operator."""
    return operator.make_grants.keywords["store"]


def operator_with(*budgets: BudgetRecord, **changed) -> Operator:
    """One workload that grows from 2 replicas, of 2 GPUs each, under these budgets."""
    store = FakeBudgets(list(budgets))
    return started(store, **changed)


def started(store: FakeBudgets, *, gpus: int | None = 2, **changed) -> Operator:
    """The same with this store. gpus: of a replica, as stated."""
    operator = Operator(
        world=World(rate=GROWING, replicas=2),
        make_grants=sharing(store),
        **changed.pop("operator", {}),
    )
    cost = {} if gpus is None else {"cost": {"gpuHourly": 2, "gpusPerReplica": gpus}}
    operator.apply(record_of(**cost, **changed))
    return operator


def budget(gpus: int = 8, name: str = "inference") -> BudgetRecord:
    """A budget of this many GPUs."""
    return BudgetRecord(name=name, uid=f"uid-{name}", gpus=gpus)


async def test_growth_ends_at_the_budget_and_takes_spare_gpus_at_once():
    """The count rises in the tick that wants it, to the budget and no further."""
    operator = operator_with(budget(8))
    await operator.ticks(80)
    after = [after for _, after in operator.fleet.scaled]
    assert max(after) == 4
    status = store_of(operator).written[-1]
    assert (status["granted"], status["short"]) == (8, status["wanted"] - 8)
    (claimant,) = status["claimants"]
    assert claimant["lostPerSecond"] > 0.0
    said = {one["type"]: one for one in status["conditions"]}
    assert (said["Sufficient"]["status"], said["Sufficient"]["reason"]) == ("False", "BudgetShort")
    assert operator.counted("servingslo_budget_gpus", budget="inference") == 8.0
    assert operator.counted("servingslo_budget_short_gpus", budget="inference") == status["short"]


async def test_the_smallest_of_several_budgets_bounds():
    """A resource of two budgets gets what both grant."""
    operator = operator_with(budget(64), budget(6, "team"))
    await operator.ticks(70)
    assert max(after for _, after in operator.fleet.scaled) == 3


async def test_a_budget_that_falls_takes_replicas_back():
    """The next tick steps down; below the minimum nothing is taken."""
    operator = operator_with(budget(8))
    await operator.ticks(70)
    store_of(operator).budgets = [budget(1)]
    await operator.ticks(2)
    assert operator.fleet.scaled[-1] == (4, 1)
    assert store_of(operator).written[-1]["conditions"][1]["reason"] == "BudgetShort"


@pytest.mark.parametrize("why", ["unread", "refused", "gpus"])
async def test_what_is_unknown_grows_nothing(why):
    """Budgets that are not read, one that is not valid, a template without GPUs."""
    store = FakeBudgets([budget(64)])
    if why == "unread":
        store.budgets = None
    if why == "refused":
        store.budgets = [BudgetRecord(name="inference", uid="u", refused="spec.gpus: bad")]
    operator = started(store, gpus=None if why == "gpus" else 2)
    await operator.ticks(60)
    assert all(after <= 2 for _, after in operator.fleet.scaled)
    assert Reason.GPUS_UNKNOWN in {event.reason for _, event in operator.events.posted}


async def test_a_deleted_budget_bounds_nothing():
    """Its gauges go with it."""
    operator = operator_with(budget(4))
    await operator.ticks(60)
    store_of(operator).budgets = []
    await operator.ticks(4)
    assert operator.fleet.scaled[-1][1] > 2
    labels = {"budget": "inference"}
    assert operator.exporter.registry.get_sample_value("servingslo_budget_gpus", labels) is None


async def test_a_status_that_cannot_be_written_is_written_later():
    """The grants do not depend on it."""
    operator = operator_with(budget(8))
    store_of(operator).down = ClusterError("away")
    await operator.ticks(3)
    assert store_of(operator).written == []
    store_of(operator).down = None
    await operator.ticks(1)
    assert store_of(operator).written


def test_a_budget_is_read_from_its_object():
    """Selectors as elsewhere in Kubernetes; a bad value is named."""
    item = {
        "metadata": {"name": "inference", "uid": "u", "generation": 3},
        "spec": {"gpus": 64, "selector": {"matchLabels": {"tier": "prod"}}},
    }
    found = budget_record(item, None)
    assert (found.gpus, found.generation, found.refused) == (64, 3, "")
    assert found.selector[0].matches({"tier": "prod"})
    refused = budget_record({**item, "spec": {"gpus": -1}}, None)
    assert "gpus" in refused.refused


def test_a_selector_that_becomes_invalid_selects_what_it_did():
    """An edit lifts no bound; a new object, and one that was never valid, have none."""
    item = {"metadata": {"name": "inference", "uid": "u"}, "spec": {"gpus": 8}}
    chosen = {"gpus": 8, "selector": {"matchLabels": {"tier": "prod"}}}
    wrong = {**item, "spec": {"gpus": 8, "selector": {"matchLabels": {"a b": "c"}}}}
    before = budget_record({**item, "spec": chosen}, None)
    found = budget_record(wrong, before)
    assert found.selector == before.selector
    assert found.refused.endswith("; what it selected before does not grow")
    assert budget_record(wrong, found) == found
    assert budget_record(wrong, budget_record(item, None)).selector == ()
    never = budget_record(wrong, None)
    for previous in (None, never, replace(before, uid="another")):
        assert budget_record(wrong, previous) == never
        assert never.refused.endswith("; nothing is bounded")


@pytest.mark.parametrize(("key", "possible"), LABELS.items())
def test_a_label_that_no_object_can_have_is_refused_by_name(key, possible):
    """A selector of it would select nothing, in silence; wherever the key is stated."""
    item = {"metadata": {"name": "inference", "uid": "u"}}
    for selector in (
        {"matchLabels": {key: "a"}},
        {"matchExpressions": [{"key": key, "operator": "Exists"}]},
    ):
        for name in ("selector", "namespaceSelector"):
            found = budget_record({**item, "spec": {"gpus": 8, name: selector}}, None)
            assert (found.refused == "") is possible, found.refused
            if not possible:
                assert f"{name}.match" in found.refused
                assert "the name of a label" in found.refused


@pytest.mark.parametrize(
    ("holders", "said"),
    [
        pytest.param(("b/large", "team/chat"), "team/chat and 1 more", id="one-is-their-own"),
        pytest.param(("b/large", "teams/job"), "another namespace", id="none-is"),
    ],
)
def test_a_tenant_reads_no_name_of_another_namespace(holders, said):
    """The administrator reads all of them, in the status of the budget."""
    share = Share(
        claim=Claim(uid="1", name="team/short", wanted_gpus=4, kept_per_gpu=1.0),
        share_gpus=2,
        granted_gpus=2,
        needed_seconds=60.0,
        holders=Names(holders, len(holders)),
    )
    assert shortage_line(share, "team") == f"{said} have them"
    waits = replace(share, donors=share.holders, holders=NOBODY)
    assert shortage_line(waits, "team") == f"it waits for pods of {said} to end"
    assert all(name in shortage_line(share) for name in holders)
