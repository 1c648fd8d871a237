"""Properties of classes: lanes by priority, shares that bound the count."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servingslo.estimation.gateway.classes import sheddable_part, whole_sample
from servingslo.estimation.gateway.counts import GatewayFlow
from servingslo.estimation.sample import GatewayInstance, GatewaySample, HistogramSample
from servingslo.features.classes.decision import LEAST_LANE, lane_bounds
from servingslo.features.classes.shares import SHARES, ClassShares, count_with_shares
from servingslo.policy.inputs import ReplicaTargets
from servingslo.policy.routes import ClassTargets
from servingslo.runtimes.gateways import CountedWhen

MOST = 20
PRIORITIES = st.lists(st.integers(-3, 3), min_size=2, max_size=8).filter(lambda p: max(p) >= 0)
COUNTS = st.integers(0, 200)


def classes_of(priorities):
    """Classes c0, c1 … of these priorities."""
    return tuple(
        ClassTargets(
            name=f"c{n}",
            priority=priority,
            route=f"c{n}",
            policy=f"c{n}",
        )
        for n, priority in enumerate(priorities)
    )


@given(PRIORITIES, st.lists(COUNTS, min_size=8, max_size=8), st.integers(1, 300), COUNTS)
def test_a_higher_lane_is_never_closed_while_a_lower_one_is_open(priorities, held, whole, filled):
    """Lanes fall with priority; a lower one above its least leaves the higher at least as much."""
    classes = classes_of(priorities)
    known = {one.name: count for one, count in zip(classes, held, strict=False)}
    lanes = lane_bounds(classes, known, whole=whole, filled=filled)
    for higher in classes:
        assert lanes[higher.name] >= LEAST_LANE
        for lower in classes:
            if higher.priority > lower.priority:
                assert lanes[higher.name] >= lanes[lower.name]


@given(PRIORITIES, st.lists(COUNTS, min_size=8, max_size=8), st.integers(1, 300), COUNTS)
def test_a_lane_leaves_what_higher_classes_have(priorities, held, whole, filled):
    """What a lane has above its least is left over by all classes above it."""
    classes = classes_of(priorities)
    known = {one.name: count for one, count in zip(classes, held, strict=False)}
    lanes = lane_bounds(classes, known, whole=whole, filled=filled)
    for one in classes:
        above = sum(known[other.name] for other in classes if other.priority > one.priority)
        most = whole if one.orders else min(filled, whole)
        assert lanes[one.name] <= max(most - above, LEAST_LANE)


@given(st.integers(1, 300), COUNTS, COUNTS)
def test_the_only_highest_class_has_the_whole_bound(whole, filled, held):
    """As without classes."""
    classes = classes_of((0, -1))
    lanes = lane_bounds(classes, {"c0": held, "c1": 0}, whole=whole, filled=filled)
    assert lanes["c0"] == whole


def context_of(rates, shares, most=MOST):
    """What `count_with_shares` reads of a tick. most: replicas.max."""
    flows = {
        name: GatewayFlow(counted=CountedWhen.PASSED_ON, requests_per_second=rate)
        for name, rate in rates.items()
    }
    return SimpleNamespace(
        targets=SimpleNamespace(
            features={SHARES.name: ClassShares(ratios=shares)},
            replicas=ReplicaTargets(maximum=most),
        ),
        estimate=SimpleNamespace(classes=flows),
    )


@given(
    PRIORITIES,
    st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8),
    st.lists(st.floats(0.0, 100.0), min_size=8, max_size=8),
    st.integers(1, MOST),
)
def test_a_sheddable_class_never_raises_the_count_beyond_its_share(
    priorities, shares, rates, wanted
):
    """More than the others need is at most the largest share of the most replicas."""
    classes = classes_of(priorities)
    known = {one.name: rate for one, rate in zip(classes, rates, strict=False)}
    stated = {one.name: s for one, s in zip(classes, shares, strict=False) if not one.orders}
    count = count_with_shares(context_of(known, stated), wanted, lambda more: wanted + int(more))
    most = max(stated.values(), default=0.0)
    assert wanted <= count <= max(wanted, int(most * MOST + 1e-9))


def test_a_share_of_whole_replicas_is_whole():
    """58 % of 50 are 29; as floats they make 28.999999999999996."""
    context = context_of({"c1": 1.0}, {"c1": 0.58}, most=50)
    assert count_with_shares(context, 1, lambda _: 50) == 29


@given(PRIORITIES, st.lists(st.floats(0.0, 100.0), min_size=8, max_size=8), st.integers(1, MOST))
def test_without_a_share_it_orders_nothing(priorities, rates, wanted):
    """Whatever it offers."""
    classes = classes_of(priorities)
    known = {one.name: rate for one, rate in zip(classes, rates, strict=False)}
    assert count_with_shares(context_of(known, {}), wanted, lambda _: MOST) == wanted


COUNTERS = (
    "requests_total",
    "rejected_total",
    "active",
    "errors_total",
    "aborted_total",
    "cut_total",
)


def sample_of(instance):
    """A class's counters at one proxy."""
    return GatewaySample(counted=CountedWhen.PASSED_ON, instances=(instance,))


@given(st.lists(st.tuples(*(st.none() | COUNTS for _ in COUNTERS)), min_size=1, max_size=8))
def test_classes_sum_to_what_the_gateway_counted(counts):
    """Each counter of the whole is the sum of those of the classes; unknown if none has it."""
    instances = [
        GatewayInstance(name="proxy", age_seconds=1.0, **dict(zip(COUNTERS, each, strict=True)))
        for each in counts
    ]
    (whole,) = whole_sample(map(sample_of, instances)).instances
    for name in COUNTERS:
        known = [count for one in instances if (count := getattr(one, name)) is not None]
        assert getattr(whole, name) == (sum(known) if known else None)


@given(st.lists(st.none() | st.tuples(st.integers(0, 2), COUNTS, COUNTS), min_size=1, max_size=8))
def test_histograms_sum_bucket_by_bucket_only_if_their_bounds_are_equal(parts):
    """In any order: a class with other bounds leaves the whole unknown, not a part of it."""
    edges = ((0.1, float("inf")), (0.1, float("inf")), (0.5, float("inf")))
    each = [
        part
        and HistogramSample(
            upper_bounds=edges[part[0]],
            cumulative_counts=(part[1], part[1] + part[2]),
            sum=2.0 * part[1],
            count=part[1] + part[2],
        )
        for part in parts
    ]
    (whole,) = whole_sample(
        sample_of(GatewayInstance(name="proxy", latency_seconds=one)) for one in each
    ).instances
    known = [one for one in each if one is not None]
    if len({one.upper_bounds for one in known}) != 1:
        assert whole.latency_seconds is None
        return
    assert whole.latency_seconds.cumulative_counts == (
        sum(one.cumulative_counts[0] for one in known),
        sum(one.count for one in known),
    )
    assert whole.latency_seconds.sum == sum(one.sum for one in known)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.0, 1.0)), min_size=2, max_size=8),
    st.integers(0, 7),
)
def test_the_sheddable_part_is_a_part(classes, number):
    """Between nothing and all; more requests of the others never make it larger."""
    flows = {
        f"c{n}": GatewayFlow(
            counted=CountedWhen.PASSED_ON,
            requests_per_second=rate,
            rejected_per_second=rate * refused,
            active=rate,
        )
        for n, (rate, refused) in enumerate(classes)
    }
    names = frozenset(name for n, name in enumerate(flows) if n <= number)
    part = sheddable_part(flows, names)
    if part is None:
        return
    assert 0.0 <= part.offered_ratio <= 1.0 + 1e-9
    assert part.admitted_per_second >= 0.0
    others = {
        n: replace(f, requests_per_second=2.0 * f.requests_per_second)
        for n, f in flows.items()
        if n not in names
    }
    more = sheddable_part({**flows, **others}, names)
    assert more is None or more.offered_ratio <= part.offered_ratio + 1e-9


@pytest.mark.parametrize("unknown", ["rate", "class"])
def test_an_unknown_part_is_not_guessed(unknown):
    """While a class is not measured, nothing is taken off the demand."""
    known = GatewayFlow(counted=CountedWhen.PASSED_ON, requests_per_second=3.0)
    silent = GatewayFlow(counted=CountedWhen.PASSED_ON)
    flows = {"chat": known, "job": silent} if unknown == "rate" else {}
    assert sheddable_part(flows, frozenset({"job"})) is None
