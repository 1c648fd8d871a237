"""Pods of which one refuses: what was done to the others is told, and what was not done."""

import logging
from typing import Any

import pytest
from tests.features.warm_replicas.test_warm_actuator import ordering
from tests.unit.controller_fakes import Operator, record_of

from servingslo.errors import EngineRefusedError
from servingslo.features.warm_replicas.actuator import WarmReplicas
from servingslo.reasons import Reason


class Half:
    """Pods of which these refuse."""

    def __init__(self, *refuse: str) -> None:
        self.refuse = refuse

    async def put_to_sleep(self, _ref: object, pod: str) -> None:
        """Unless it refuses."""
        if pod in self.refuse:
            raise EngineRefusedError(f"{pod}: HTTP 500")

    async def take_out(self, ref: object, pod: str, _runtime: str) -> None:
        """The same."""
        await self.put_to_sleep(ref, pod)


@pytest.mark.parametrize(
    ("refuse", "told"),
    [
        pytest.param(("a",), ["sleep=1 take_out=1 outcome=written", "sleep=1 outcome=refused"]),
        pytest.param(("c",), ["sleep=2 outcome=written", "take_out=1 outcome=refused"]),
        pytest.param(("a", "b", "c"), ["sleep=2 take_out=1 outcome=refused"]),
    ],
)
async def test_each_pod_is_told_as_it_ended(
    refuse: tuple[str, ...], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A line of the pods that did as asked, and of those that did not, with why."""
    caplog.set_level(logging.INFO)
    pods: Any = Half(*refuse)
    warm = WarmReplicas(None, pods, sleeps=True)
    order = ordering(sleeps=("a", "b"), takes_out=("c",))
    operator = Operator()
    resource = operator.apply(record_of())
    change = warm.wanted(order)
    failure = await operator.reconciler._write(resource, change, warm.change(order))
    assert failure.reason is Reason.WRITE_FAILED
    assert f"{refuse[0]}: HTTP 500" in failure.detail
    lines = [line for line in caplog.messages if "knob=warm-replicas" in line]
    assert [any(one in line for line in lines) for one in told] == [True] * len(lines), lines
