"""Batch limits as the controller writes them: each write is told once, and a refusal is none."""

import logging

from tests.unit.controller_fakes import Operator, record_of
from tests.unit.policy_world import World, steady

from servingslo.controller.recordings.recording import Recorder
from servingslo.errors import ArgumentsNotUnderstoodError, WriteConflictError
from servingslo.policy.inputs import Limits
from servingslo.reasons import Reason

BATCHING = {"mode": "Auto"}
FEW_SEQUENCES = 4


def narrow(recorder: Recorder | None = None) -> Operator:
    """Engines whose limit of four sequences is far too low, where the operator may change it."""
    operator = Operator(
        world=World(rate=steady(8.0), replicas=4, max_num_seqs=FEW_SEQUENCES),
        limits=Limits(batching_apply_enabled=True),
        recorder=recorder or Recorder(None),
    )
    window = {"scaleDown": {"stabilizationWindowSeconds": 45}}
    operator.apply(record_of(batching=BATCHING, behavior=window))
    return operator


async def test_batch_limits_are_written_where_allowed():
    """The template gets the limits that the status recommends."""
    operator = narrow()
    for _ in range(120):
        await operator.tick()
        if operator.fleet.workload.patches:
            break
    (engine,) = operator.fleet.workload.spec["template"]["spec"]["containers"]
    assert int(engine["args"][2]) > FEW_SEQUENCES, operator.resources.status()["batching"]


async def test_batch_limits_that_cannot_be_written_are_told():
    """A command line that is not understood is an event, and replicas go on."""
    operator = narrow()
    operator.fleet.workload.refuses = ArgumentsNotUnderstoodError("a shell script starts it")
    for _ in range(120):
        await operator.tick()
        if Reason.WRITE_FAILED in operator.events.reasons():
            break
    assert operator.fleet.workload.patches == 0
    messages = [event.message for _, event in operator.events.posted]
    assert any(text.endswith(" not written: a shell script starts it") for text in messages)
    assert operator.resources.condition("BatchingInSync")[1] == Reason.WRITE_FAILED


async def refused_limits(operator: Operator) -> None:
    """Until the first write of limits is refused; the next one would not be."""
    operator.fleet.workload.refuses = WriteConflictError("the template changed")
    for _ in range(120):
        await operator.tick()
        if Reason.WRITE_CONFLICT in operator.events.reasons():
            break
    assert operator.fleet.workload.patches == 0
    assert operator.resources.condition("BatchingInSync")[1] == Reason.WRITE_CONFLICT
    operator.fleet.workload.refuses = None


async def test_batch_limits_that_were_refused_are_no_change():
    """The status names none, and limits are written as soon as that is possible again."""
    operator = narrow()
    await refused_limits(operator)
    assert operator.resources.status()["batching"].get("lastChange") is None
    await operator.ticks(2)
    assert operator.fleet.workload.patches
    assert operator.resources.status()["batching"]["lastChange"]


async def test_each_write_is_told_once(caplog):
    """Every count and every pair of limits that is written has one line, event and count."""
    caplog.set_level(logging.INFO)
    operator = narrow()
    for _ in range(120):
        await operator.tick()
        if operator.fleet.workload.patches and operator.fleet.scaled:
            break
    writes = len(operator.fleet.scaled) + operator.fleet.workload.patches
    assert operator.fleet.scaled
    assert operator.fleet.workload.patches
    lines = [text for text in caplog.messages if text.startswith("changed ")]
    assert len(lines) == writes
    assert all(" outcome=written " in line for line in lines)
    scaled = [f" replicas={before}->{after} " for before, after in operator.fleet.scaled]
    told = [line for line in lines if " knob=replicas " in line]
    assert all(change in line for change, line in zip(scaled, told, strict=True))
    every_time = [event for _, event in operator.events.posted if event.every_time]
    assert len(every_time) == writes
    limits = next(line for line in lines if " knob=batch-limits " in line)
    assert f" max_num_seqs={FEW_SEQUENCES}->" in limits
