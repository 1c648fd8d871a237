"""Storms over classes and over a fallback, and that each thing that must hold is noticed broken."""

import pytest
from tests.chaos.gateway import CHAT, JOB, ROUTE, Gateway
from tests.chaos.run import again, lived
from tests.chaos.shared import KINDS, OFF, GatewayStory
from tests.chaos.story import FAULTS

KNOBS = {"classes": "knob=lanes", "degradation": "knob=route-weights"}


@pytest.mark.parametrize(
    "seed", [8000, *(pytest.param(n, marks=pytest.mark.acceptance) for n in range(8001, 8004))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_storm_over_a_gateway_leads_to_no_forbidden_write_and_ends_well(kind, seed):
    """Lanes or weights are written in it, and at the end all is as the owners had it."""
    told, result = lived(seed, gateway=kind)
    assert not result.wrong, f"{again(seed, FAULTS, (), gateway=kind)}: {result.wrong}"
    assert any(KNOBS[kind] in line for _, _, line in told.log)


@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_that_is_off_when_the_operator_starts_again_leaves_nothing(kind):
    """In mid-change: just before it, the operator's values stand."""
    story = GatewayStory(8000, 0, kind=kind)
    story.farewell = OFF
    made, stood = story.made, []

    def watched():
        stood.append(bool(story.gateway.left()))
        return made()

    story.made = watched
    story.run()
    assert stood[-1]
    assert not story.broken


def _item(gateway: Gateway, plural: str, name: str) -> dict:
    items = gateway.objects.items
    return next(one for path, one in items.items() if path.endswith(f"/{plural}/{name}"))


def _gateway(kind: str) -> Gateway:
    return GatewayStory(0, kind=kind).gateway


@pytest.mark.parametrize(
    ("weights", "broken"),
    [
        pytest.param((1000, 0), False, id="owner"),
        pytest.param((500, 500), False, id="most"),
        pytest.param((400, 600), True, id="above-maxShare"),
        pytest.param((0, 1000), True, id="all-at-the-fallback"),
    ],
)
def test_weights_beyond_the_most_are_noticed(weights, broken):
    """Whoever wrote them."""
    gateway = _gateway("degradation")
    backends = _item(gateway, "httproutes", ROUTE)["spec"]["rules"][0]["backendRefs"]
    for backend, weight in zip(backends, weights, strict=True):
        backend["weight"] = weight
    gateway.check(0.0)
    assert bool(gateway.broken) is broken


def test_a_lower_lane_above_a_higher_one_is_noticed():
    """If both are the operator's."""
    gateway = _gateway("classes")
    for name, limit in ((CHAT, 4), (JOB, 9)):
        item = _item(gateway, "backendtrafficpolicies", name)
        item["spec"]["circuitBreaker"] = {"maxParallelRequests": limit}
        item["metadata"]["annotations"] = {"servingslo.dev/limit": "{}"}
    gateway.check(0.0)
    assert gateway.broken


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_of_a_write_is_noticed(kind):
    """A spec or an annotation that the owner did not make."""
    gateway = _gateway(kind)
    assert gateway.left() == []
    item = _item(gateway, "backendtrafficpolicies", gateway.names[0])
    item["metadata"]["annotations"] = {"servingslo.dev/limit": "{}"}
    assert len(gateway.left()) == 1
    del item["metadata"]["annotations"]
    item["spec"]["circuitBreaker"] = {"maxParallelRequests": 7}
    assert len(gateway.left()) == 1


def test_requests_beyond_a_lane_are_refused_and_counted():
    """A closed lane lets none of its class in."""
    story = GatewayStory(0, kind="classes")
    _item(story.gateway, "backendtrafficpolicies", JOB)["spec"]["circuitBreaker"] = {
        "maxParallelRequests": 0
    }
    story.cluster.pass_to(120.0)
    assert story.gateway.refused[JOB] > 0.0
    assert story.gateway.passed[JOB] == 0.0
    assert story.gateway.passed[CHAT] > 0.0
