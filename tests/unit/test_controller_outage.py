"""An API server that is away is one line in the log, and one more when it is back."""

import logging

import pytest
from overtaken_world import World

from servingslo.controller.reporting.outage import REPEAT_SECONDS, Outages
from servingslo.errors import ClusterUnavailableError, PermissionDeniedError

PATCHES = [f"inference/{name}" for name in ("a", "b", "c", "d")]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_outage_is_said_once_and_its_end_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Forty ticks without an API server: three warnings, once each, and a line at its end."""
    caplog.set_level("INFO")
    world = World()
    world.cluster.create()
    world.sees()
    world.cluster.away = True
    for _ in range(40):
        await world.tick(1.0)
    outage, change, decision = sorted(_warnings(caplog))
    assert outage.startswith("api server away")
    assert change.startswith("changed")
    assert decision.startswith("decided")
    world.cluster.away = False
    await world.tick(1.0)
    (over,) = [line for line in caplog.messages if line.startswith("api server answers again")]
    assert "failed=" in over


def test_all_resources_share_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Four resources that fail at every tick for ten minutes: a line at first and one at last."""
    outages = Outages()
    error = ClusterUnavailableError("PATCH /apis: no answer in time")
    for now in range(int(REPEAT_SECONDS) + 1):
        for name in PATCHES:
            outages.met(("status", name), error, float(now))
    first, second = _warnings(caplog)
    assert "requests=1 " in first
    assert f"requests={4 * int(REPEAT_SECONDS) + 1} " in second


def test_a_refusal_is_of_its_own_resource(caplog: pytest.LogCaptureFixture) -> None:
    """What is forbidden for one is said once and ends with its own answer, not another's."""
    outages = Outages()
    error = PermissionDeniedError("PATCH /apis: 403")
    for now in range(10):
        outages.met(("status", PATCHES[0]), error, float(now))
        outages.passed(("status", PATCHES[1]), float(now))
    assert len(_warnings(caplog)) == 1
