"""Servers of which one refuses: what was set on the others is told, and what was not."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.features.dynamic_batches.test_batcher_actuator import SET, assignment, ordering
from tests.unit.controller_fakes import Operator, record_of

from servingslo.errors import EngineRefusedError, NotFoundError
from servingslo.explain.changes import change_line
from servingslo.features.dynamic_batches.actuator import DynamicBatching
from servingslo.reasons import Reason

ORDER = assignment(ordering(replace(SET, pods=("rank-0", "rank-1", "rank-2"))))


class Half:
    """Servers of which these fail, each with its error."""

    def __init__(self, **fail: Exception) -> None:
        self.fail = fail

    async def set(self, _ref: object, pod: str, *_: object) -> bool:
        """Unless it fails."""
        if (error := self.fail.get(pod.replace("-", "_"))) is not None:
            raise error
        return True


def batching(**fail: Exception) -> DynamicBatching:
    """The actuator of servers of which these fail."""
    servers: Any = Half(**fail)
    return DynamicBatching(servers, writes=True)


@pytest.mark.parametrize(
    ("fail", "told"),
    [
        pytest.param({"rank_1"}, {"pods=2 outcome=written", "pods=1 outcome=refused"}),
        pytest.param({"rank_0", "rank_2"}, {"pods=1 outcome=written", "pods=2 outcome=refused"}),
        pytest.param({"rank_0", "rank_1", "rank_2"}, {"pods=3 outcome=refused"}),
    ],
)
async def test_each_server_is_told_as_it_ended(
    fail: set[str], told: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A line of the servers that were set, and of those that were not, with why."""
    caplog.set_level(logging.INFO)
    actuator = batching(**dict.fromkeys(fail, EngineRefusedError("HTTP 500")))
    operator = Operator()
    resource = operator.apply(record_of())
    change = actuator.wanted(ORDER)
    failure = await operator.reconciler._write(resource, change, actuator.change(ORDER))
    assert failure.reason is Reason.WRITE_FAILED
    assert failure.detail.startswith("HTTP 500")
    assert ("written: Deployment/rank on rank-" in failure.detail) is (len(told) == 2)
    lines = [line for line in caplog.messages if "knob=dynamic-batching" in line]
    assert len(lines) == len(told)
    assert all(any(one in line for line in lines) for one in told), lines


async def test_each_server_is_told_as_its_limits_were_put_back() -> None:
    """One that is gone has no limits; one that fails is tried again."""
    actuator = batching()
    await actuator.change(ORDER)
    fail = {"rank_1": EngineRefusedError("HTTP 500"), "rank_2": NotFoundError("gone")}
    actuator.models = batching(**fail).models
    back, left = map(change_line, await actuator.undo(lambda _: ()))
    assert "pods=1 outcome=rolled-back" in back
    assert "on rank-0" in back
    assert "pods=1 outcome=refused" in left
    actuator.models = batching().models
    (back,) = map(change_line, await actuator.undo(lambda _: ()))
    assert "on rank-1" in back
    assert await actuator.undo(lambda _: ()) == []
