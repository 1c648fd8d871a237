"""Invariants of the classical queues.

1. Waits rise with load.
2. Little's law holds.
3. Limits to exact cases: M/M/c/K → M/M/c as K grows, M/M/c/c is Erlang B, M/M/1 is M/M/c with 1.
4. Flow is conserved: admitted + blocked = offered.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.textbook import queueing

servers = st.integers(1, 40)
ratios = st.floats(0.05, 0.95)
seconds = st.floats(1e-3, 10.0)


@given(service=seconds, count=servers, low=ratios, high=ratios)
def test_wait_rises_with_load(service, count, low, high):
    """1. A higher offered load never waits less."""
    low, high = min(low, high), max(low, high)
    assert queueing.mmc_wait_seconds(service, low * count, count) <= queueing.mmc_wait_seconds(
        service, high * count, count
    ) * (1 + 1e-9)


@given(service=seconds, count=servers, ratio=st.floats(0.05, 2.0), room=st.integers(0, 40))
def test_finite_queue_keeps_littles_law_and_flow(service, count, ratio, room):
    """2, 4. Number in system is admitted rate times time; admitted plus blocked is offered."""
    rate = ratio * count / service
    queue = queueing.mmck(rate, service, count, count + room)
    in_system = queue.throughput_per_second * (queue.wait_seconds + service)
    assert queue.in_system_mean == pytest.approx(in_system, rel=1e-9, abs=1e-12)
    assert queue.throughput_per_second + rate * queue.blocking_probability == pytest.approx(rate)
    assert queue.in_system_mean <= count + room + 1e-9


@given(service=seconds, count=servers, ratio=st.floats(0.05, 0.8))
def test_finite_queue_tends_to_the_infinite_one(service, count, ratio):
    """3. With room for many, M/M/c/K waits as M/M/c and blocks nobody."""
    queue = queueing.mmck(ratio * count / service, service, count, count + 300)
    exact = queueing.mmc_wait_seconds(service, ratio * count, count)
    assert queue.wait_seconds == pytest.approx(exact, rel=1e-6, abs=1e-12)
    assert queue.blocking_probability < 1e-9


@given(count=servers, ratio=st.floats(0.05, 3.0), dispersion=st.floats(0.0, 4.0))
def test_no_room_is_erlang_b_for_any_service_law(count, ratio, dispersion):
    """3. M/G/c/c loses as Erlang B says, whatever the service law."""
    load = ratio * count
    lost = queueing.erlang_b(load, count)
    assert queueing.mgck_blocking(load, 1.0, count, count, dispersion) == pytest.approx(lost)


@given(service=seconds, ratio=ratios)
def test_one_server_is_mm1(service, ratio):
    """3. M/M/c with one server and M/G/1 with exponential service are M/M/1."""
    exact = queueing.mm1_wait_seconds(service, ratio)
    assert queueing.mmc_wait_seconds(service, ratio, 1) == pytest.approx(exact)
    assert queueing.mg1_wait_seconds(service, 2 * service**2, ratio) == pytest.approx(exact)
    assert queueing.mgc_wait_seconds(service, ratio, 1) == pytest.approx(exact)


@given(count=servers, ratio=st.floats(1.0, 3.0))
def test_overload_has_no_stationary_wait(count, ratio):
    """At or above capacity a stationary wait is refused, not invented."""
    with pytest.raises(queueing.UnstableQueueError):
        queueing.erlang_c(ratio * count, count)
