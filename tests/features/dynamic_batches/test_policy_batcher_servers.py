"""Limits and counters of servers: as numbers of their actuator, as one batcher, as a sample."""

from dataclasses import replace

import pytest

from servingslo.features.dynamic_batches.servers import (
    BatcherLimits,
    Owner,
    PodBatcher,
    batcher_in_force,
    batchers_of,
    request_sample,
    values_of,
    with_limits,
)
from servingslo.policy.inputs import InForce

FILE = BatcherLimits(2, 1000, 0)


def test_what_stands_on_pods_is_read_back_from_the_numbers_it_was_told_by():
    """A pod that lacks one is left out."""
    told = {"a": PodBatcher(limits=FILE, owner=Owner.OURS, batches={2: (3, 4)}, requests=5)}
    values = values_of(told)
    assert batchers_of(InForce(values=values)) == told
    values.pop("a/max_queue_size")
    assert batchers_of(InForce(values=values)) == {}
    assert batchers_of(None) == {}


def test_pods_that_differ_are_planned_with_what_carries_least():
    """The smaller batch, the longer window, the smaller of bounded rooms, the fewer instances."""
    told = {
        "a": PodBatcher(limits=BatcherLimits(8, 0, 0), instances=2),
        "b": PodBatcher(limits=BatcherLimits(4, 5000, 64), instances=1),
    }
    assert batcher_in_force(told) == with_limits(BatcherLimits(4, 5000, 64), 1)
    assert batcher_in_force({}) is None


def test_requests_of_one_batch_count_as_one_and_a_counter_that_fell_from_zero():
    """Ten batches of one and ten of four: a request is in one of 3.4 on average."""
    before = PodBatcher(limits=FILE, requests=40, request_microseconds=9_000_000, failed=3)
    now = replace(
        before,
        requests=90,
        request_microseconds=19_000_000,
        failed=5,
        batches={1: (10, 1), 4: (10, 1)},
    )
    sample = request_sample([(before, now)])
    assert (sample.answered, sample.failed, sample.mean_seconds) == (50, 2, 0.2)
    assert sample.design_effect == pytest.approx((10 * 1 + 10 * 16) / 50)
    again = request_sample([(replace(before, requests=91), now)])
    assert (again.answered, again.engines) == (90, 1)
    assert request_sample([]).mean_seconds is None
