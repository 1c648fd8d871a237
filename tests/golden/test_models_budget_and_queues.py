"""Worked numbers of KV replicas and of finite queues.

By hand from the definitions, where the literature that the models cite has no worked example.
"""

import math

import numpy as np
import pytest
from tests.textbook import queueing

from servingslo.models.engine import kv_cache
from servingslo.models.workload import LengthDistribution, Workload


def test_tokens_that_a_running_sequence_holds():
    """Prompts of 1,000, outputs of 100 or 300 alike: met in proportion to length, halfway on.

    E[O²]/2E[O] = (10,000 + 90,000)/2/400 = 125 generated, half a block of 16 on top.
    """
    workload = Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.constant(1000.0),
        output=LengthDistribution(tokens=(100.0, 300.0), weights=(0.5, 0.5)),
    )
    held = kv_cache.held_tokens(workload, 16)
    assert held.mean == pytest.approx(1000.0 + 125.0 + 8.0)
    # E[O³]/3E[O] = (1e6 + 27e6)/2/600.
    assert held.variance == pytest.approx(14e6 / 600.0 - 125.0**2)


def test_small_finite_queues_by_hand():
    """M/M/1/2 at load 1 holds 0, 1 or 2 alike; M/M/2/3 at load 2: 1 : 2 : 2 : 2 of 7."""
    one = queueing.mmck(1.0, 1.0, 1, 2)
    assert one.blocking_probability == pytest.approx(1 / 3)
    assert one.in_system_mean == pytest.approx(1.0)
    assert one.throughput_per_second == pytest.approx(2 / 3)
    assert one.wait_seconds == pytest.approx((1 / 3) / (2 / 3))
    two = queueing.mmck(2.0, 1.0, 2, 3)
    assert two.blocking_probability == pytest.approx(2 / 7)
    assert two.wait_seconds == pytest.approx((2 / 7) / (10 / 7))


def _lost_of_equal_services(load, room):
    """Blocking of M/D/1/K, exact: the chain at departures, and the share that finds it full."""
    arrived = [math.exp(-load) * load**k / math.factorial(k) for k in range(room)]
    chain = np.zeros((room, room))
    for held in range(room):
        left = max(held - 1, 0)
        for count, share in enumerate(arrived[: room - 1 - left]):
            chain[held, left + count] = share
        chain[held, -1] = 1.0 - chain[held].sum()
    system = chain.T - np.eye(room)
    system[-1] = 1.0
    law = np.linalg.solve(system, np.eye(room)[-1])
    return 1.0 - 1.0 / (law[0] + load)


@pytest.mark.parametrize(
    ("load", "room", "error_ratio"), [(0.8, 5, 0.05), (0.9, 10, 0.05), (0.5, 5, 0.6), (1.2, 5, 0.1)]
)
def test_a_queue_of_equal_services_loses_less(load, room, error_ratio):
    """M/D/1/K: close to the exact law near saturation, above it where hardly any is lost."""
    equal = queueing.mgck_blocking(load, 1.0, 1, room, 0.0)
    exact = _lost_of_equal_services(load, room)
    assert exact * 0.98 <= equal <= exact * (1.0 + error_ratio)
    assert equal < queueing.mgck_blocking(load, 1.0, 1, room, 1.0)
    assert queueing.mgck_blocking(load, 1.0, 1, room, 3.0) > queueing.mgck_blocking(
        load, 1.0, 1, room, 1.0
    )


def test_waits_of_general_services():
    """M/D/c waits half of M/M/c by Allen–Cunneen; two servers at load 1.6 wait 1.78 services."""
    exponential = queueing.mmc_wait_seconds(1.0, 1.6, 2)
    assert exponential == pytest.approx(1.6**2 / (4.0 - 1.6**2))
    assert queueing.mgc_wait_seconds(1.0, 1.6, 2, 1.0, 0.0) == pytest.approx(0.5 * exponential)
    assert queueing.mg1_wait_seconds(1.0, 1.0, 0.8) == pytest.approx(
        queueing.md1_wait_seconds(1.0, 0.8)
    )
