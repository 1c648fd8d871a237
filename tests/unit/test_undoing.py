"""What nobody wants any more is put back: soon where it failed, and told once."""

import asyncio
from dataclasses import dataclass, field, fields, replace

import pytest
from tests.unit.controller_fakes import Operator

from servingslo.controller.actuators.endings import PartlyUndoneError
from servingslo.controller.loop import Controller
from servingslo.controller.reporting.outage import Outages
from servingslo.controller.undoing import RETRY_SECONDS, SWEEP_SECONDS, Undoing
from servingslo.errors import ClusterError
from servingslo.explain.changes import Change, ChangeOutcome, Knob, not_written
from servingslo.reasons import Reason

CHANGE = Change(
    namespace="team-a",
    name="gone",
    target="Deployment/gone",
    knob=Knob.GATEWAY_LIMITS,
    settings=(),
    outcome=ChangeOutcome.ROLLED_BACK,
    reason=Reason.BATCHING_ROLLED_BACK,
)
FAILED = not_written(CHANGE, Reason.WRITE_FAILED, "gone-0 is not ready", answered=True)


@dataclass
class Standing:
    """An actuator as far as it puts back, which ends as often as is stated with a failure."""

    failures: int
    knob: str = Knob.GATEWAY_LIMITS
    asked: int = 0
    left: list[Change] = field(default_factory=lambda: [CHANGE])

    async def undo(self, _: object) -> list[Change]:
        """What came of it."""
        self.asked += 1
        if self.asked <= self.failures:
            return [FAILED]
        undone, self.left = self.left, []
        return undone


@dataclass
class Broken(Standing):
    """One with a defect."""

    async def undo(self, _: object) -> list[Change]:
        """Never comes back."""
        self.asked += 1
        raise RecursionError


@dataclass
class Halved(Standing):
    """One that cannot look for all of it at first."""

    async def undo(self, _: object) -> list[Change]:
        """What it found is put back all the same."""
        self.asked += 1
        if self.asked == 1:
            raise PartlyUndoneError([ClusterError("destinationrules: 403")], [CHANGE])
        return []


@dataclass(slots=True)
class Told:
    """What is told of changes."""

    changes: list[Change] = field(default_factory=list)
    outages: Outages = field(default_factory=Outages)

    def log_line(self, change: Change) -> None:
        """Of a resource that is gone."""
        self.changes.append(change)


@dataclass
class Overrunning(Controller):
    """The loop where a tick takes as long as there is between two."""

    async def _rest(self, until: float) -> None:
        """No time is left in which a resource that went would be looked at."""
        del until
        await asyncio.sleep(1.0)


def undoing(*standing: Standing) -> tuple[Undoing, Told]:
    """That of an operator with these actuators alone, and what it told."""
    operator, told = Operator(), Told()
    undo = replace(
        operator.controller.undoing,
        adapters=replace(operator.adapters, actuators=standing),  # type: ignore[arg-type]
        reporter=told,  # type: ignore[arg-type]
    )
    return undo, told


def test_what_failed_is_tried_again_soon_and_told_once():
    """After 15 s and then at twice the time; what was put back waits for the next sweep."""
    standing = Standing(failures=2)
    undo, told = undoing(standing)
    for at, asked in ((0.0, 1), (14.0, 1), (15.0, 2), (44.0, 2), (45.0, 3), (600.0, 3), (645.0, 4)):
        asyncio.run(undo.when_due(at))
        assert standing.asked == asked, at
    assert told.changes == [FAILED, CHANGE]


def test_an_actuator_that_fails_by_itself_keeps_no_other_from_it():
    """A defect in one of them, or an object that it does not understand, is tried again too."""
    broken, standing = Broken(failures=0), Standing(failures=0)
    undo, told = undoing(broken, standing)
    asyncio.run(undo.when_due(0.0))
    asyncio.run(undo.when_due(15.0))
    assert (broken.asked, standing.asked) == (2, 2)
    assert told.changes == [CHANGE]


def test_what_is_put_back_is_told_also_if_the_rest_cannot_be_looked_for(caplog):
    """The rest is looked for again soon, and the trouble is told."""
    standing = Halved(failures=0)
    undo, told = undoing(standing)
    asyncio.run(undo.when_due(0.0))
    assert told.changes == [CHANGE]
    assert "destinationrules: 403" in caplog.text
    asyncio.run(undo.when_due(15.0))
    assert standing.asked == 2


def test_tries_grow_no_rarer_than_a_sweep():
    """However long it fails."""
    standing = Standing(failures=1000)
    undo, told = undoing(standing)
    for at in range(0, 7200, 15):
        asyncio.run(undo.when_due(float(at)))
    assert 7200 / SWEEP_SECONDS < standing.asked < 7200 / RETRY_SECONDS / 10
    assert told.changes == [FAILED]
    known = standing.asked
    undo.ask()
    asyncio.run(undo.when_due(7200.0))
    assert standing.asked == known + 1


@pytest.mark.virtual_time
async def test_what_goes_while_ticks_overrun_is_put_back_at_the_next():
    """A resource that is deleted in a tick is looked at by the next one."""
    operator = Operator()
    standing = Standing(failures=0, left=[])
    undo, told = undoing(standing)
    names = (one.name for one in fields(Controller) if one.init)
    kept = {name: getattr(operator.controller, name) for name in names}
    controller = Overrunning(**{**kept, "undoing": undo})
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(2.5)
    known = standing.asked
    standing.left = [CHANGE]
    operator.registry.wake(("team-a", "gone"))
    await asyncio.sleep(2.5)
    task.cancel()
    assert known == 1
    assert told.changes == [CHANGE]
