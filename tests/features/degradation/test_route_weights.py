"""Weights of a route: which routes can be used, what is written, and whose weights stand there."""

import copy
import json

import pytest

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.features.degradation.actuator import standing_weights
from servingslo.features.degradation.routes import (
    MOST_WEIGHT,
    WEIGHTS_ANNOTATION,
    weighted_routes,
    weights_of,
)
from servingslo.features.degradation.share import FORMER, SHARE
from servingslo.policy.routes import BACKEND, RULE
from servingslo.reasons import Reason

REF = ResourceRef(namespace="inference", name="chat", uid="u1")
MARK = {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": []}}
ROUTE = {
    "metadata": {
        "name": "chat",
        "namespace": "inference",
        "uid": "r1",
        "resourceVersion": "7",
        "labels": {"servingslo.dev/managed": "true"},
    },
    "spec": {
        "rules": [
            {
                "backendRefs": [
                    {"name": "chat", "port": 8000, "weight": 1, "filters": [MARK]},
                    {"name": "small", "port": 8000, "weight": 0, "filters": [MARK]},
                ]
            }
        ]
    },
}


def changed(change):
    """A route after this change of its manifest."""
    item = copy.deepcopy(ROUTE)
    change(item)
    return weighted_routes(None).seen(item)


def refs(item):
    """The backends of its rule."""
    return item["spec"]["rules"][0]["backendRefs"]


def ours(share, name="chat"):
    """A route whose weights the operator wrote."""

    def change(item):
        weights = weights_of((1, 0), 1, share)
        for one, weight in zip(refs(item), weights, strict=True):
            one["weight"] = weight
        record = {"name": name, "uid": "u1", "rule": 0, "weights": weights, "former": [1, 0]}
        item["metadata"]["annotations"] = {WEIGHTS_ANNOTATION: json.dumps(record)}

    return changed(change)


@pytest.mark.parametrize(
    ("former", "share", "weights"),
    [
        ((1, 0), 50, (950, 50)),
        ((1, 0), 0, (1000, 0)),
        ((1, 0), 1000, (0, 1000)),
        ((70, 0, 30), 300, (49000, 30000, 21000)),
        ((MOST_WEIGHT, 0), 1, (999_000, 1000)),
    ],
)
def test_weights_give_a_share_and_divide_the_rest_as_before(former, share, weights):
    """In whole numbers, within what the Gateway API allows."""
    assert weights_of(former, 1, share) == weights
    assert max(weights) <= 1_000_000


def test_the_present_share_is_read():
    """0 as the owner left it; ours as written, with the mark that it is ours."""
    standing = standing_weights(REF, weighted_routes(None).seen(ROUTE), "small")
    assert standing.values == {RULE: 0, BACKEND: 1, SHARE: 0}
    assert standing.refused is None
    standing = standing_weights(REF, ours(250), "small")
    assert standing.values == {RULE: 0, BACKEND: 1, SHARE: 250, FORMER: 1}
    assert standing.refused is None


def _unlabelled(item):
    item["metadata"]["labels"] = {}


def _two_rules(item):
    item["spec"]["rules"].append(item["spec"]["rules"][0])


def _no_filter(item):
    del refs(item)[0]["filters"]


def _weighted(item):
    refs(item)[1]["weight"] = 10


def _alone(item):
    del refs(item)[0]


def _elsewhere(item):
    refs(item)[1]["namespace"] = "other"


def _heavy(item):
    refs(item)[0]["weight"] = MOST_WEIGHT + 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_two_rules, "2 rules with backends"),
        (_no_filter, "Service/chat has no filter there"),
        (_weighted, "Service/small has weight 10 there, not 0"),
        (_alone, "no other backend"),
        (_elsewhere, "leads to Service/small, no Service from here"),
        (_heavy, "more than 1000"),
    ],
)
def test_a_route_of_another_form_is_not_used(change, says):
    """With what is wrong about it."""
    problem = standing_weights(REF, changed(change), "small").refused
    assert problem.reason is Reason.ROUTE_NOT_USABLE
    assert says in problem.detail


def test_our_weights_are_put_back_in_a_route_that_became_another():
    """The owner removed a filter meanwhile: what we wrote is still known as ours."""
    route = ours(250)
    del refs(route.item)[0]["filters"]
    found = standing_weights(REF, route, "small")
    assert found.refused.reason is Reason.ROUTE_NOT_USABLE
    assert found.values == {SHARE: 250, FORMER: 1}


def test_only_a_labelled_route_is_written():
    """The label is the owner's word."""
    problem = standing_weights(REF, changed(_unlabelled), "small").refused
    assert problem.reason is Reason.NOT_PERMITTED
    assert "servingslo.dev/managed" in problem.detail


def test_weights_of_another_are_left_alone():
    """Of another client, and of another ServingSLO."""
    route = ours(250)
    refs(route.item)[1]["weight"] = 7
    found = standing_weights(REF, route, "small")
    assert found.refused.reason is Reason.WEIGHTS_SET_BY_ANOTHER
    assert FORMER not in found.values
    assert not route.is_ours
    other = standing_weights(REF, ours(250, name="other"), "small").refused
    assert other.reason is Reason.WEIGHTS_SET_BY_ANOTHER
    assert "ServingSLO other" in other.detail


def test_a_record_that_is_none_is_no_owner():
    """Anyone may edit an annotation."""

    def change(item):
        item["metadata"]["annotations"] = {WEIGHTS_ANNOTATION: '{"name": 3}'}

    assert changed(change).owner is None
