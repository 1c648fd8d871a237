"""Lanes of which one cannot be written: what was written is told, and what was not."""

import logging
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from tests.unit.classed_world import THREE, story
from tests.unit.controller_fakes import NAME, NAMESPACE, Operator, record_of

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.protocol import Assignment
from servingslo.errors import ClusterUnavailableError, WriteConflictError
from servingslo.features.classes.actuator import Lanes, lanes_change
from servingslo.policy.inputs import InForce
from servingslo.policy.routes import LANES
from servingslo.reasons import Reason

REF = ResourceRef(namespace=NAMESPACE, name=NAME, uid="u")


@dataclass
class Half:
    """Objects of which some cannot be written."""

    error: Exception
    writes: int
    set_: list[str] = field(default_factory=list)

    async def set(self, _ref, via, _planned, _after, **_) -> bool:
        """Until it fails."""
        if len(self.set_) == self.writes:
            raise self.error
        self.set_.append(via.name)
        return True


@cache
def ordered() -> Assignment:
    """The first change of lanes in a story."""
    told = story(THREE, rate=4.0)
    told.until(600.0)
    decision = next(one for one in told.decisions if lanes_change(one) is not None)
    decision = replace(decision, namespace=NAMESPACE, name=NAME)
    return Assignment(ref=REF, targets=told.targets, decision=decision, in_force={LANES: InForce()})


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (WriteConflictError("not as it was"), "refused", Reason.WRITE_CONFLICT),
        (ClusterUnavailableError("no answer"), "unanswered", Reason.WRITE_FAILED),
    ],
)
async def test_each_lane_is_told_as_it_ended(error, outcome, reason, writes, caplog):
    """A line and an event of those that were written, and of those that were not, with why."""
    caplog.set_level(logging.INFO)
    order = ordered()
    lanes = Lanes(Half(error, writes))
    change = lanes.wanted(order)
    operator = Operator()
    resource = operator.apply(record_of())
    failure = await operator.reconciler._write(resource, change, lanes.change(order))
    assert failure.reason is reason
    lines = [line for line in caplog.messages if "knob=lanes" in line]
    assert len(lines) == 1 + writes
    written = lanes.limits.set_
    for line in lines:
        told = line.partition("target=BackendTrafficPolicy/")[2].split()[0]
        assert f"outcome={'written' if [told] == written else outcome}" in line
    assert all(one in failure.detail for one in written)
    reasons = [event.reason for _, event in operator.events.posted]
    assert reasons.count(reason) == 1
    assert len(reasons) == 1 + writes
