"""One resource in one tick: what is written and told, and what a refusal leaves behind."""

import asyncio
import logging
from copy import deepcopy
from dataclasses import replace

import pytest
from tests.unit.controller_fakes import NAME, SPEC, UID, FakeHistory, Operator, record_of
from tests.unit.policy_world import World, steady, stepped

from servingslo.cli.decision_document import last_document
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.errors import (
    ClusterUnavailableError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.packing import packed
from servingslo.policy.inputs import SignalProblem
from servingslo.policy.ports import ClusterMetrics
from servingslo.reasons import Reason

DOWN = ClusterUnavailableError("no answer within 5 s")
# At 4 requests a second two engines serve; from here on twelve are not enough.
SURGE_SECONDS = 150.0


def busy(**changed) -> Operator:
    """Two replicas whose load rises to five times after some minutes."""
    operator = Operator(world=World(rate=stepped((0.0, 4.0), (SURGE_SECONDS, 20.0)), replicas=2))
    operator.apply(record_of(**changed))
    return operator


async def until_scaled(operator: Operator, most: int = 60) -> None:
    """Ticks until something is written."""
    for _ in range(most):
        await operator.tick()
        if operator.fleet.scaled:
            return
    pytest.fail(f"nothing was written in {most} ticks")


async def test_a_rise_is_written_and_told_once():
    """The count is set from what it was, one event says so, and the status shows it."""
    operator = busy()
    await until_scaled(operator)
    ((before, after),) = operator.fleet.scaled
    assert before == 2
    assert after > 2
    assert operator.world.desired == after
    assert operator.events.reasons().count(Reason.SCALED) == 1
    assert operator.resources.status()["replicas"]["desired"] == after
    assert last_document(operator.resources.status())["replicasAfter"] == after


async def test_a_count_that_somebody_changed_is_not_overwritten():
    """Another's change between reading and writing wins; it is read anew and planned from."""
    operator = busy()
    for _ in range(60):
        operator.fleet.tick()
        resource = next(iter(operator.registry.resources.values()))
        metrics = await operator.fleet.read_metrics()
        recognize = metrics.recognize("inference", None)
        await operator.fleet.read_workload("inference", resource.targets.target, None, recognize)
        seen = operator.world.desired
        operator.world.desired = 5  # behind the cache
        again = await operator.reconciler.reconcile(resource, metrics, None)
        if again:
            break
        operator.world.desired = seen
    else:
        pytest.fail("nothing was ever ordered")
    assert operator.fleet.scaled == []
    assert operator.world.desired == 5
    assert Reason.WRITE_CONFLICT in operator.events.reasons()
    assert operator.counted("servingslo_write_conflicts_total") == 1
    assert last_document(operator.resources.status())["reason"] == Reason.WRITE_CONFLICT
    assert operator.fleet.distrusted == [resource.targets.target]
    await operator.look()
    assert all(before == 5 for before, _ in operator.fleet.scaled)


async def test_conflicts_in_a_row_wait_for_the_next_tick():
    """It is planned again at once twice, then no more, so that two writers do not spin."""
    operator = busy()
    wanted = []

    async def always_changed(_namespace, _target, before, _after):
        raise WriteConflictError(f"not {before} any more")

    operator.fleet.scale = always_changed
    resource = next(iter(operator.registry.resources.values()))
    while len(wanted) < 4 and operator.world.now < 900:
        operator.fleet.tick()
        again = await operator.reconciler.reconcile(
            resource, await operator.fleet.read_metrics(), None
        )
        if again or wanted:
            wanted.append(again)
    assert wanted == [True, True, False, False]


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(DOWN, id="unavailable"),
        pytest.param(PermissionDeniedError("scale is forbidden"), id="forbidden"),
    ],
)
async def test_a_write_that_fails_is_a_hold(refusal):
    """The count stays, the decision says why, and the next tick orders anew."""
    operator = busy()
    while operator.world.now < SURGE_SECONDS:
        await operator.tick()
    scale = operator.fleet.scale

    async def refused(*_):
        raise refusal

    operator.fleet.scale = refused
    for _ in range(20):
        await operator.tick()
        if Reason.WRITE_FAILED in operator.events.reasons():
            break
    assert operator.fleet.scaled == []
    last = last_document(operator.resources.status())
    assert (last["reason"], last["replicasAfter"]) == (Reason.WRITE_FAILED, 2)
    assert operator.counted("servingslo_failures_total", part="kubernetes") >= 1
    assert Reason.SCALED not in operator.events.reasons()
    operator.fleet.scale = scale
    await operator.tick()
    assert len(operator.fleet.scaled) == 1


async def test_advice_writes_nothing():
    """In mode Recommend the count that is wanted is told and not set."""
    operator = busy(mode="Recommend")
    await operator.ticks(25)
    assert operator.fleet.scaled == []
    assert operator.resources.status()["replicas"]["desired"] > 2
    assert operator.resources.condition("ScalingLimited")[1] == Reason.RECOMMEND_ONLY


async def test_another_owner_of_the_target_keeps_hands_off():
    """A conflict that the registry found is a hold with that reason."""
    operator = busy()
    resource = next(iter(operator.registry.resources.values()))
    conflict = SignalProblem(reason=Reason.TARGET_CONFLICT, detail="other is older")
    for _ in range(20):
        operator.fleet.tick()
        await operator.reconciler.reconcile(resource, await operator.fleet.read_metrics(), conflict)
    assert operator.fleet.scaled == []
    assert last_document(operator.resources.status())["reason"] == Reason.TARGET_CONFLICT


async def test_no_metrics_never_give_a_replica_away():
    """Without Prometheus nothing is scaled down, and the status says that nothing is seen."""
    operator = Operator(world=World(rate=steady(1.0), replicas=6))
    operator.apply(record_of())
    operator.fleet.metrics_down = SignalProblem(
        reason=Reason.PROMETHEUS_UNAVAILABLE, detail="no answer within 5 s"
    )
    await operator.ticks(30)
    assert operator.fleet.scaled == []
    assert operator.resources.condition("MetricsFresh") == ("False", "PrometheusUnavailable")
    assert operator.counted("servingslo_failures_total", part="prometheus") == 30
    operator.fleet.metrics_down = None
    await operator.ticks(40)
    assert operator.fleet.scaled
    assert operator.world.desired < 6
    assert operator.resources.condition("MetricsFresh")[0] == "True"


async def test_a_target_that_is_not_there_is_told():
    """Nothing is written, and Ready says what is missing."""
    operator = Operator()
    gone = {**SPEC["targetRef"], "name": "nobody"}
    operator.apply(record_of(targetRef=gone))
    await operator.ticks(3)
    assert operator.fleet.scaled == []
    assert operator.resources.condition("Ready") == ("False", Reason.TARGET_NOT_FOUND)


async def test_a_paused_resource_is_not_looked_at():
    """Neither planned nor written; conditions say that it is paused."""
    operator = busy(mode="Paused")
    await operator.ticks(15)
    assert operator.fleet.scaled == []
    assert "lastDecision" not in operator.resources.status()
    assert operator.resources.condition("ScalingLimited") == ("True", Reason.PAUSED)


async def test_a_change_of_the_spec_keeps_what_was_learnt():
    """A new generation is planned for at once, with the law that was fitted before."""
    operator = Operator()
    operator.apply(record_of())
    await operator.ticks(20)
    assert operator.resources.condition("ModelTrusted")[0] == "True"
    operator.apply(record_of(generation=2, replicas={"min": 5, "max": 12}))
    await operator.tick()
    assert operator.world.desired == 5
    assert operator.resources.status()["observedGeneration"] == 2
    assert operator.resources.condition("ModelTrusted")[0] == "True"


async def test_another_target_begins_anew():
    """Its count is no hand edit of the former one's, and nothing is known of its law."""
    operator = Operator()
    operator.apply(record_of())
    await operator.ticks(20)
    operator.fleet.target, operator.world.desired = "other", 4
    operator.apply(record_of(generation=2, targetRef={**SPEC["targetRef"], "name": "other"}))
    await operator.tick()
    assert Reason.REPLICAS_CHANGED_BY_USER not in operator.events.reasons()
    assert operator.resources.condition("ModelTrusted") == ("Unknown", Reason.MODEL_LEARNING)


async def test_a_restart_takes_up_what_the_status_holds():
    """A new process trusts the law after two readings; one without the status does not."""
    operator = Operator()
    operator.apply(record_of())
    await operator.ticks(25)
    operator.start()
    await operator.ticks(2)
    assert operator.resources.condition("ModelTrusted")[0] == "True"

    record = operator.resources.records[NAME]
    operator.resources.records[NAME] = replace(record, status={})
    operator.start()
    await operator.ticks(2)
    assert operator.resources.condition("ModelTrusted") == ("Unknown", Reason.MODEL_LEARNING)


async def test_a_namesake_does_not_inherit():
    """Deleted and made again: another uid, and nothing is known of it."""
    operator = Operator()
    operator.apply(record_of())
    await operator.ticks(20)
    operator.delete()
    operator.apply(record_of(uid="uid-2"))
    await operator.tick()
    assert operator.resources.condition("ModelTrusted") == ("Unknown", Reason.MODEL_LEARNING)
    assert [ref.uid for ref in operator.events.forgotten] == [UID]


async def test_history_is_asked_for_and_used_once():
    """What the past holds reaches the observation; nobody is asked where it is not configured."""
    history = FakeHistory(
        found=RateHistory(start_seconds=-900.0, bin_seconds=300.0, rates_per_second=(1.0, 2.0, 3.0))
    )
    operator = Operator(history=history)
    operator.apply(record_of())
    await operator.ticks(3)
    assert history.asked == [UID] * 3
    assert history.ticks == 3
    assert history.found is None


def changed_lines(caplog) -> list[str]:
    """The lines of the log that tell a change."""
    return [text for text in caplog.messages if text.startswith("changed ")]


async def test_a_write_that_is_cut_off_is_told_as_unanswered(caplog):
    """An operator that ends while a request is under way says that it may have been written."""
    caplog.set_level(logging.INFO)
    operator = busy()

    async def never_answers(*_arguments):
        raise asyncio.CancelledError

    operator.fleet.scale = never_answers
    with pytest.raises(asyncio.CancelledError):
        await until_scaled(operator)
    (line,) = changed_lines(caplog)
    assert " outcome=unanswered " in line


async def test_partial_metrics_are_named():
    """A reading with warnings reaches the decision as its problem."""
    operator = busy()
    operator.fleet.tick()
    resource = next(iter(operator.registry.resources.values()))
    read = await operator.fleet.read_metrics()
    partial = SignalProblem(reason=Reason.METRICS_PARTIAL, detail="one store did not answer")
    await operator.reconciler.reconcile(
        resource, ClusterMetrics(pods=read.pods, problem=partial), None
    )
    assert operator.resources.condition("MetricsFresh")[1] == Reason.METRICS_PARTIAL


async def test_a_stored_memory_that_cannot_be_is_told_once(caplog):
    """An event and a line name what is dropped; a whole one and a new process say nothing."""
    operator = busy()
    await operator.ticks(20)
    whole = operator.resources.status()["learned"]
    state = deepcopy(learned_of({"learned": whole}))
    state["estimator"]["laws"][0]["trusted"] = [5e-14, 0.0, 0.0, 0.0, 0.01, 50]
    cut = {"data": whole["data"][:-8]}
    for learned, times in ((whole, 0), (cut, 1), ({"data": packed(state)}, 2)):
        caplog.clear()
        before = operator.resources.records[NAME]
        operator.resources.records[NAME] = replace(before, status={"learned": learned})
        operator.start()
        await operator.ticks(3)
        assert operator.events.reasons().count(Reason.LEARNED_DROPPED) == times
        assert sum("reason=LearnedDropped" in line for line in caplog.messages) == bool(times)
    told = [e for _, e in operator.events.posted if e.reason is Reason.LEARNED_DROPPED]
    assert "all of it" in told[0].message
    assert "laws" in told[1].message


async def test_an_older_crd_that_drops_what_is_learnt_is_reported_once(caplog):
    """The API server prunes the packed state at once: a line and an event say which CRD to apply.

    With the new CRD again, the next process says that the loss is of before, and writes at once.
    """
    operator = busy()
    patch_status = operator.resources.patch_status

    async def pruned(ref, changed):
        learned = {**(changed.get("learned") or {}), "data": None}
        kept = {**changed, "learned": learned} if "learned" in changed else changed
        await patch_status(ref, kept)

    async def lines(ticks):
        caplog.clear()
        for _ in range(ticks):
            await operator.ticks(1)
            operator.registry.upsert(operator.resources.records[NAME])
        return [one for one in caplog.messages if "reason=LearnedDropped" in one]

    operator.resources.patch_status = pruned
    (line,) = await lines(20)
    assert "the installed CRD is older than the operator: apply crds/" in line
    assert learned_of(operator.resources.status()) == {}

    operator.resources.patch_status = patch_status
    operator.start()
    (line,) = await lines(3)
    assert "installed CRD" not in line
    assert "dropped before this start: by an older CRD (a rollback?)" in line
    assert learned_of(operator.resources.status())
    assert operator.events.reasons().count(Reason.LEARNED_DROPPED) == 2
