"""Classes from the manifest's words to the planner's terms."""

from tests.unit import api_cases

from servingslo.api.convert import targets_from_spec
from servingslo.features.classes.shares import SHARES, ClassShares
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.routes import ClassTargets

CHAT = (
    Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=0.5),
    Objective(metric=LatencyMetric.TPOT, percentile=95.0, threshold_seconds=0.05),
)


def test_each_class_has_its_route_policy_and_objectives() -> None:
    """What a class does not state follows from its route and from the resource."""
    targets = targets_from_spec(api_cases.changed({}, "classed"))
    assert SHARES.of(targets.features) == ClassShares(ratios={"batch": 0.25})
    assert targets.classes == (
        ClassTargets(name="chat", route="llama-chat", policy="llama-chat-lane", objectives=CHAT),
        ClassTargets(
            name="batch",
            priority=-10,
            route="llama-batch",
            policy="llama-batch",
            objectives=CHAT[:1],
        ),
    )


def test_replicas_keep_the_objectives_of_all_classes_that_order_some() -> None:
    """The stricter threshold counts; a sheddable class orders nothing by its objectives."""
    strict = {"metric": "ttft", "percentile": 99, "threshold": "200ms"}
    spec = api_cases.changed({"classes[1].objectives": [strict]}, "classed")
    assert targets_from_spec(spec).objectives == CHAT
    more = {"classes[1].share": None, "classes[1].priority": 5, "classes[1].objectives": [strict]}
    ttft, tpot = targets_from_spec(api_cases.changed(more, "classed")).objectives
    assert (ttft.threshold_seconds, tpot) == (0.2, CHAT[1])


def test_without_classes_the_resource_has_its_own_objectives() -> None:
    """Nothing changes without classes."""
    targets = targets_from_spec(api_cases.changed({}))
    assert (targets.classes, targets.objectives) == ((), CHAT)
