"""Several pools in one tick: each pool's target is written, refused and left alone as one is."""

from dataclasses import replace

import pytest
from tests.unit.controller_fakes import record_of
from tests.unit.policy_world import stepped
from tests.unit.pools_world import (
    DECODE,
    POOLS,
    PREFILL,
    PoolsOperator,
    one_target,
    pools_record,
    worlds,
)

from servingslo.cli.decision_document import last_document
from servingslo.errors import (
    ClusterUnavailableError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.policy.inputs import SignalProblem
from servingslo.reasons import Reason

SURGE_SECONDS = 150.0
LEARNT_TICKS = 20


def operator_of(**others) -> PoolsOperator:
    """Two and two replicas whose load rises to more than four times after some minutes."""
    rate = stepped((0.0, 2.0), (SURGE_SECONDS, 9.0))
    operator = PoolsOperator(worlds=worlds(rate), **others)
    operator.apply(pools_record())
    return operator


async def idle_operator(**changed) -> PoolsOperator:
    """Far more replicas than are needed, and everything learnt that step downs need."""
    operator = PoolsOperator(worlds=worlds(prefill=6, decode=6))
    operator.apply(pools_record(**changed))
    return operator


async def test_a_rise_is_written_to_each_target_and_told_by_pool() -> None:
    """Each count from what it was, one event a pool, and the sums with each pool in the status."""
    operator = operator_of()
    await operator.ticks(20)
    written = {name for name, *_ in operator.pools.written}
    assert DECODE in written
    status = operator.resources.status()
    counts = [operator.count(PREFILL), operator.count(DECODE)]
    assert [
        operator.pool_status(pool)["replicas"]["desired"] for pool in ("prefill", "decode")
    ] == (counts)
    assert status["replicas"]["desired"] == sum(counts)
    assert status["poolsSummary"] == f"prefill {counts[0]}/decode {counts[1]}"
    told = [event.message for _, event in operator.events.posted if event.reason is Reason.SCALED]
    assert told
    assert all(one.startswith(("prefill: replicas ", "decode: replicas ")) for one in told)
    assert (
        operator.counted(
            "servingslo_desired_replicas", namespace="inference", name="llama-chat", pool="decode"
        )
        == counts[1]
    )


async def test_a_target_that_is_gone_keeps_the_other_from_stepping_down() -> None:
    """Nothing is taken away while a pool is not there; once it is back, both step down."""
    operator = await idle_operator()
    operator.pools.gone.add(PREFILL)
    await operator.ticks(45)
    assert operator.pools.written == []
    assert operator.pool_status("decode")["reason"] in {Reason.POOL_UNSEEN, Reason.METRICS_FRESH}
    assert operator.resources.condition("Ready") == ("False", Reason.TARGET_NOT_FOUND)
    operator.pools.gone.clear()
    await operator.ticks(45)
    assert operator.count(DECODE) < 6


async def test_a_pool_that_is_not_seen_does_not_keep_the_other_from_growing() -> None:
    """The blind pool stays; the other follows the rise."""
    operator = operator_of()
    await operator.ticks(9)
    operator.blind(PREFILL)
    await operator.ticks(15)
    assert operator.count(PREFILL) == 2
    assert operator.count(DECODE) > 2
    assert operator.resources.condition("MetricsFresh")[0] == "False"


async def test_a_count_edited_by_hand_is_the_new_start_of_its_pool_alone() -> None:
    """It is reported for that pool and planned from; the other pool knows of none."""
    operator = PoolsOperator(worlds=worlds(prefill=2, decode=2))
    operator.apply(pools_record())
    await operator.ticks(LEARNT_TICKS)
    operator.worlds[DECODE].scale(5)
    before = len(operator.events.posted)
    await operator.ticks(2)
    edits = [
        event.message
        for _, event in operator.events.posted[before:]
        if event.reason is Reason.REPLICAS_CHANGED_BY_USER
    ]
    assert len(edits) == 1
    assert edits[0].startswith("decode: ")


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(PermissionDeniedError("scale is forbidden"), id="forbidden"),
        pytest.param(ClusterUnavailableError("no answer"), id="no-answer"),
    ],
)
async def test_a_refused_write_of_one_pool_leaves_the_other_its_own(refusal: Exception) -> None:
    """The refused pool holds and says why, and is ordered anew once it may be written."""
    operator = operator_of()
    operator.pools.refusals[DECODE] = refusal
    operator.apply(
        pools_record(
            generation=2,
            pools=[{**POOLS[0], "replicas": {"min": 4, "max": 12}}, POOLS[1]],
        )
    )
    await operator.ticks(20)
    assert operator.count(PREFILL) >= 4
    assert operator.count(DECODE) == 2
    assert operator.pool_status("decode")["reason"] == Reason.WRITE_FAILED
    operator.pools.refusals.clear()
    await operator.ticks(2)
    assert operator.count(DECODE) > 2


def test_what_may_be_put_back_is_asked_for_each_pool() -> None:
    """A pool that is taken out wants nothing any more, nor does any pool of an adviser."""
    operator = operator_of()
    undoing = operator.controller.undoing
    ref = operator.resources.records["llama-chat"].ref
    assert [one.target.name for one in undoing.wanted(ref)] == [PREFILL, DECODE]
    operator.apply(one_target(1, generation=2))
    assert [one.target.name for one in undoing.wanted(ref)] == [DECODE]
    operator.apply(pools_record(generation=3, mode="Recommend"))
    assert undoing.wanted(ref) == ()


async def test_conflicts_of_one_pool_do_not_spin_beside_writes_of_the_other() -> None:
    """A pool is planned again at once twice in a row, whatever becomes of the other."""
    operator = operator_of()
    operator.pools.refusals[DECODE] = WriteConflictError("not 2 any more")
    resource = next(iter(operator.registry.resources.values()))
    repeats = []
    while len(repeats) < 4 and operator.pools.now < 900:
        operator.pools.tick()
        # The other pool is edited behind each tick, so that it is written each time too.
        operator.worlds[PREFILL].scale(1)
        again = await operator.reconciler.reconcile(
            resource, await operator.pools.read_metrics(), None
        )
        if again or repeats:
            repeats.append(again)
    assert repeats == [True, True, False, False]


async def test_a_scaler_that_comes_before_the_write_is_seen_on_each_target() -> None:
    """The last look asks for the target that is written, not for the first pool's."""
    operator = operator_of()
    hpa = SignalProblem(reason=Reason.SCALER_CONFLICT, detail="HorizontalPodAutoscaler/decode")
    operator.pools.scalers[DECODE] = (hpa,)
    await operator.ticks(20)
    assert operator.count(DECODE) == 2
    assert operator.pool_status("decode")["reason"] == Reason.SCALER_CONFLICT


async def test_an_older_owner_of_one_target_keeps_hands_off_all_pools() -> None:
    """Pools are planned together: with one that is another's nothing of them is written."""
    operator = operator_of()
    older = record_of(
        name="older", uid="uid-0", created_seconds=-1.0, targetRef=POOLS[1]["targetRef"],
        mode="Recommend",
    )  # fmt: skip
    operator.apply(older)
    await operator.ticks(20)
    assert operator.pools.written == []
    assert operator.resources.condition("Ready")[1] == Reason.TARGET_CONFLICT


async def test_a_changed_spec_is_seen_between_the_writes_of_two_pools() -> None:
    """After the first write the resource is looked at again: the second pool is left alone."""
    operator = operator_of()
    while operator.pools.now < SURGE_SECONDS - 20.0:
        await operator.tick()
    minima = [{**pool, "replicas": {"min": 4, "max": 12}} for pool in POOLS]
    operator.apply(pools_record(generation=2, pools=minima))
    scale = operator.pools.scale

    async def then_paused(namespace, target, before, after):
        await scale(namespace, target, before, after)
        record = pools_record(generation=3, pools=minima, mode="Paused")
        operator.resources.put(record)

    for actuator in operator.adapters.actuators[:1]:
        object.__setattr__(actuator, "writer", _Writer(then_paused))
    await operator.tick()
    await operator.look()
    assert len(operator.pools.written) == 1


class _Writer:
    """The port of the writer with another way to scale."""

    def __init__(self, scale) -> None:
        self.scale = scale


async def test_a_move_between_a_target_and_pools_keeps_what_was_learnt() -> None:
    """By target: decode's law is trusted under `targetRef`, in the pool, and back again."""
    operator = PoolsOperator(worlds=worlds(prefill=2, decode=2))
    operator.apply(one_target(1))
    await operator.ticks(LEARNT_TICKS)
    assert operator.resources.condition("ModelTrusted")[0] == "True"
    operator.apply(pools_record(generation=2))
    await operator.tick()
    assert operator.pool_status("decode")["model"]["source"] == "fit"
    document = last_document(operator.resources.status()) or {}
    assert document["pools"]["decode"]["model"]["trusted"] is True
    assert document["pools"]["prefill"]["model"]["trusted"] is False
    await operator.ticks(LEARNT_TICKS)
    operator.apply(one_target(1, generation=3))
    await operator.tick()
    status = operator.resources.status()
    assert operator.resources.condition("ModelTrusted")[0] == "True"
    assert "pools" not in status
    assert "poolsSummary" not in status


def _combined(name: str) -> dict:
    """A Combined pool on the engines of decode."""
    return {
        "name": name,
        "targetRef": {**POOLS[1]["targetRef"], "name": name},
        "replicas": {"min": 1, "max": 8},
        "cost": {"gpuHourly": 2.0},
    }


async def test_a_pool_that_is_taken_out_is_left_alone_and_forgotten() -> None:
    """Its target keeps its count, and its numbers are exported no longer."""
    names = ("cheap", "dear", "spare")
    world = worlds(prefill=2, decode=2)[DECODE]
    operator = PoolsOperator(worlds={name: replace(world, named=name) for name in names})
    operator.apply(pools_record(pools=[_combined(name) for name in names]))
    await operator.ticks(3)
    labels = {"namespace": "inference", "name": "llama-chat"}
    assert operator.counted("servingslo_replicas_current", pool="spare", **labels) == 2
    operator.apply(pools_record(generation=2, pools=[_combined(name) for name in names[:2]]))
    await operator.ticks(2)
    assert operator.counted("servingslo_replicas_current", pool="spare", **labels) == 0
    assert operator.counted("servingslo_replicas_current", pool="dear", **labels) > 0
    assert operator.count("spare") == 2
    assert all(name != "spare" for name, *_ in operator.pools.written)


@pytest.mark.parametrize("change", ["renamed", "removed"])
async def test_combined_pools_are_planned_on_under_other_names(change: str) -> None:
    """What was learnt by pool follows the targets: the next tick decides, as a restart does."""
    names = ("cheap", "dear", "spare")
    world = worlds(prefill=2, decode=2)[DECODE]
    seeds = enumerate(names, start=1)
    operator = PoolsOperator(
        worlds={name: replace(world, named=name, seed=seed) for seed, name in seeds}
    )
    operator.apply(pools_record(pools=[_combined(name) for name in names]))
    await operator.ticks(LEARNT_TICKS)
    cheap, dear, spare = (_combined(name) for name in names)
    changed = {
        "renamed": [{**one, "name": f"{one['name']}-1"} for one in (cheap, dear, spare)],
        "removed": [cheap, dear],
    }[change]
    operator.apply(pools_record(generation=2, pools=changed))
    await operator.ticks(2)
    assert operator.resources.condition("Ready") == ("True", Reason.READY)
    assert [one["name"] for one in operator.resources.status()["pools"]] == [
        one["name"] for one in changed
    ]
