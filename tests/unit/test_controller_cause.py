"""The log line, Ready and the events tell why nothing can be decided, in every mode."""

import pytest
from overtaken_world import World

from servingslo.policy.inputs import Limits, SignalProblem
from servingslo.policy.ports import ClusterMetrics
from servingslo.reasons import Reason

REFUSED = "no connection to prometheus:9090: Connection refused"


def _world(mode: str, limits: Limits | None = None) -> World:
    world = World(limits)
    world.cluster.metrics = ClusterMetrics(
        problem=SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail=REFUSED)
    )
    world.cluster.replicas = 3
    world.cluster.create(mode=mode)
    world.sees()
    return world


def _ready(world: World) -> dict[str, str]:
    written = [status["conditions"] for status in world.cluster.statuses if "conditions" in status]
    return next(entry for entry in written[-1] if entry["type"] == "Ready")


@pytest.mark.parametrize(
    ("mode", "limits", "beside"),
    [
        pytest.param("Auto", None, "", id="auto"),
        pytest.param("Recommend", None, " mode=Recommend ", id="recommend"),
        pytest.param("Auto", Limits(recommend_only=True), " mode=KillSwitch ", id="kill-switch"),
    ],
)
async def test_the_cause_is_the_reason_and_the_mode_stands_beside_it(
    caplog: pytest.LogCaptureFixture, mode: str, limits: Limits | None, beside: str
) -> None:
    """Without Prometheus the line says so and how it failed, whatever the mode is."""
    caplog.set_level("INFO")
    world = _world(mode, limits)
    await world.tick()
    (line,) = [line for line in caplog.messages if line.startswith("decided")]
    head = "decided namespace=inference name=chat action=hold replicas=3 "
    assert line.startswith(f"{head}reason=PrometheusUnavailable")
    assert beside in line
    assert REFUSED in line
    ready = _ready(world)
    assert (ready["status"], ready["reason"]) == ("False", "PrometheusUnavailable")
    assert REFUSED in ready["message"]


async def test_an_outage_is_one_event() -> None:
    """Ready and MetricsFresh turn together: the event says it once."""
    world = _world("Auto")
    await world.tick()
    await world.tick()
    assert [event.reason for event in world.cluster.events] == [Reason.PROMETHEUS_UNAVAILABLE]


async def test_a_target_that_cannot_be_used_is_the_only_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kind that the cluster does not have is named, in the log as in the one event."""
    caplog.set_level("INFO")
    missing = "the cluster has no kind Model in example.dev/v1"
    world = _world("Auto")
    world.cluster.problems = (SignalProblem(reason=Reason.TARGET_NOT_FOUND, detail=missing),)
    await world.tick()
    (event,) = world.cluster.events
    assert (event.reason, event.message) == (Reason.TARGET_NOT_FOUND, missing)
    (line,) = [line for line in caplog.messages if line.startswith("decided")]
    assert missing in line
