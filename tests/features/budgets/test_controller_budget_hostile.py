"""What tenants and administrators may do to a budget, and what it must not do to others."""

import json
from dataclasses import replace

import pytest
from tests.features.budgets.test_controller_grants import budget, store_of
from tests.features.budgets.test_controller_shared_budget import GPUS, held, two_models
from tests.unit.controller_fakes import SPEC, record_of
from tests.unit.pools_world import PoolsOperator

from servingslo.features.budgets.report import budget_status
from servingslo.features.budgets.sharing import Claim, share_gpus
from servingslo.policy.inputs import SignalProblem
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason


def claimants(operator: PoolsOperator, name: str = "inference") -> dict[str, dict]:
    """The rows of the last status of a budget, by name of the ServingSLO."""
    shared = next(
        one for one in operator.reconciler.grants._budgets.values() if one.record.name == name
    )
    return {one["name"]: one for one in shared.written["claimants"]}


async def test_a_second_servingslo_on_a_target_counts_no_gpu_twice() -> None:
    """Three more ServingSLOs on one Deployment take nothing from the others."""
    operator = two_models(150.0)
    spec = operator.resources.records["batch"].spec
    for number in range(3):
        second = record_of(
            spec, name=f"again-{number}", uid=f"uid-again-{number}", created_seconds=1.0
        )
        operator.apply(second)
    for _ in range(40):
        await operator.tick()
        assert held(operator) <= GPUS
    assert operator.count("chat") > 2
    rows = claimants(operator)
    assert rows["again-2"]["granted"] == rows["again-2"]["wanted"] == 0


async def test_a_minimum_above_the_administrators_limit_reserves_no_gpu() -> None:
    """Only counts that can be ordered are kept for a minimum."""
    operator = two_models(150.0, max_replicas=3)
    batch = operator.resources.records["batch"]
    spec = {**batch.spec, "replicas": {"min": 20, "max": 20}}
    operator.apply(record_of(spec, name="batch", uid="uid-batch", generation=2))
    for _ in range(40):
        await operator.tick()
    assert operator.count("batch") == operator.count("chat") == 3


@pytest.mark.parametrize("name", ["odd", "batch"])
async def test_a_target_that_can_never_be_read_stops_nobody_else(name) -> None:
    """A kind that cannot be scaled, or that the operator has no right to, is reported.

    Of a ServingSLO that had another target before, nothing of that one counts any more.
    """
    operator = two_models(150.0)
    for _ in range(20 if name == "batch" else 0):
        await operator.tick()
    target = {"apiVersion": "example.com/v1", "kind": "Engine", "name": "odd"}
    spec = {**SPEC, "targetRef": target}
    operator.apply(record_of(spec, name=name, uid=f"uid-{name}", generation=2))
    read, problem = operator.pools.read_workload, Reason.PERMISSION_DENIED

    async def denied(namespace, target, container, recognize):
        if target.name != "odd":
            return await read(namespace, target, container, recognize)
        return WorkloadView(target=target, problems=(SignalProblem(reason=problem, detail="403"),))

    operator.pools.read_workload = denied
    for _ in range(40):
        await operator.tick()
        assert name == "batch" or held(operator) <= GPUS
    assert operator.count("chat") > 2
    row = claimants(operator)[name]
    assert row["reason"].startswith("its target is not counted")
    assert row["granted"] == row["wanted"] == 0


async def test_a_smaller_budget_leaves_nothing_idle_in_a_larger_one() -> None:
    """GPUs that a team may not have by its own budget are others'."""
    operator = two_models(150.0)
    store_of(operator).budgets = [budget(GPUS), budget(3, "team")]

    def selects(record, _namespace, labels):
        return record.name == "inference" or labels.get("team") == "chat"

    store_of(operator).selects = selects
    for key, entry in operator.registry.resources.items():
        labelled = replace(entry.record, labels={"team": entry.record.ref.name})
        operator.registry.resources[key] = replace(entry, record=labelled)
    for _ in range(60):
        await operator.tick()
        assert held(operator) <= GPUS
    assert operator.count("chat") == 3
    assert operator.count("batch") == GPUS - 3
    assert claimants(operator, "team")["chat"]["short"] > 0


async def test_nothing_is_granted_before_all_resources_are_listed() -> None:
    """Resources that are not seen yet may hold the GPUs that look free."""
    operator = two_models(0.0)
    operator.controller._listed = False
    for _ in range(10):
        await operator.tick()
    assert held(operator) <= 4
    operator.controller._listed = True
    for _ in range(20):
        await operator.tick()
    assert operator.count("chat") > 2


async def test_a_budget_that_is_made_again_counts_pods_that_end() -> None:
    """Without a budget both grow; with a new one of the same name the lower priority steps down."""
    operator = two_models(150.0)
    for _ in range(20):
        await operator.tick()
    store_of(operator).budgets = []
    for _ in range(20):
        await operator.tick()
    assert held(operator) > GPUS
    store_of(operator).budgets = [replace(budget(GPUS), uid="uid-again")]
    before = held(operator)
    for _ in range(30):
        await operator.tick()
        assert held(operator) <= max(before, GPUS)
    assert held(operator) <= GPUS
    assert operator.count("chat") > 2


def test_hundreds_of_long_names_fit_into_a_status() -> None:
    """A status that is refused would stop the sharing of every budget."""
    claims = [
        Claim(
            uid=f"uid-{number}",
            name=f"inference/{'x' * 240}-{number}",
            wanted_gpus=9,
            ordered_gpus=1,
            held_gpus=3,
        )
        for number in range(400)
    ]
    chat = Claim(uid="chat", name="inference/chat", priority=9, wanted_gpus=900)
    sharing = share_gpus(500, (*claims, chat), 0.0)
    assert sharing.shares["chat"].donors.count == 400
    unknown = {"uid-7": "y" * 100_000}
    told = budget_status(budget(500), sharing, {}, unknown, previous={}, now_seconds=0.0)
    assert len(json.dumps(told.fields)) < 500_000
    assert len(told.line) < 5_000
    assert any("and 395 more" in one.get("reason", "") for one in told.fields["claimants"])


def test_a_spec_that_only_a_person_mends_stalls_a_budget() -> None:
    """Who waits for it fails at once; one without resources, which may come, is waited for."""
    for refused, stalled in (("spec.gpus: at most 100000", "True"), ("", None)):
        record = replace(budget(GPUS), refused=refused)
        sharing = None if refused else share_gpus(GPUS, (), 0.0)
        told = budget_status(record, sharing, {}, {}, previous={}, now_seconds=0.0)
        conditions = {one["type"]: one for one in told.fields["conditions"]}
        assert conditions["Ready"]["status"] == "False"
        assert conditions.get("Stalled", {}).get("status") == stalled
