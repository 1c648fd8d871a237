"""The window of dynamic batches follows the load: by the law, and against the book's algorithm."""

from dataclasses import replace

import numpy as np
import pytest
from test_policy_batcher_limits import FILE, LAW, TARGETS, Server, World
from tests.textbook.batching import WINDOW_SHARE_OF_OBJECTIVE, adaptive_window_seconds
from tests.validation.triton_steps import Steps, TritonSteps

from servingslo.models.engine.service_time import ServiceLaw
from servingslo.models.fleet.frontier import Limit
from servingslo.models.objectives import LatencyMetric
from servingslo.models.waits.dynamic_batches import saturation_per_second
from servingslo.policy.knobs.decisions import BatcherLimits
from servingslo.policy.knobs.dynamic_batches.search import WINDOW_SHARES
from servingslo.policy.knobs.dynamic_batches.servers import with_limits
from servingslo.policy.knobs.dynamic_batches.windows import WindowSearch, try_next
from servingslo.reasons import Reason

LONG = BatcherLimits(4, 140_000, 0)


def world(limits: BatcherLimits, rate: float) -> World:
    """Three servers with these limits, which batches of their largest size ran on."""
    targets = replace(
        TARGETS,
        batching=replace(TARGETS.batching, max_sequences=limits.max_batch_size),
        replicas=replace(TARGETS.replicas, minimum=3, maximum=3),
    )
    servers = {f"rank-{number}": Server(limits=limits) for number in range(3)}
    return World(rate=rate, targets=targets, servers=servers, harmed_above=99)


def test_a_window_is_taken_away_in_light_traffic_on_one_pod_first():
    """Nobody comes to share a batch; the window is only a wait."""
    light = world(LONG, rate=1.0)
    started = light.until(Reason.BATCHING_CANARY_STARTED)
    assert started.batcher.after == LONG._replace(max_queue_delay_microseconds=0)
    assert started.batcher.pods == ("rank-2",)
    assert "of a replica one takes" in started.batcher.detail
    light.until(Reason.BATCHING_CHANGED)
    for _ in range(45):
        light.tick()
    assert {one.limits.max_queue_delay_microseconds for one in light.servers.values()} == {0}


def test_a_window_that_costs_less_than_a_load_stays():
    """Loading the model makes requests wait for two seconds; 1 ms is not worth that."""
    still = world(FILE, rate=1.0)
    decisions = [still.tick() for _ in range(60)]
    assert not any(one.batcher.pods for one in decisions)
    assert decisions[-1].batcher.reason is Reason.BATCHING_IN_SYNC


def test_windows_change_no_more_often_than_the_least_interval():
    """A change that is due is reported and waits."""
    light = world(LONG, rate=1.0)
    first = light.until(Reason.BATCHING_CANARY_STARTED).time_seconds
    light.until(Reason.BATCHING_IN_SYNC, most=80)
    for one in light.servers.values():
        one.limits = LONG
    light.state = type(light.state)()
    again = light.until(Reason.BATCHING_CANARY_STARTED)
    assert again.time_seconds > first


OBJECTIVE_SECONDS, SIZE = 0.1, 16
# The book's server: 5 ms and 0.6 ms for each image, objective and batch of its example.
BOOK = ServiceLaw(
    step_fixed_seconds=0.005, step_per_sequence_seconds=0.0006, prefill_per_token_seconds=0.0
)


def chosen(law: ServiceLaw, rate: float, room: int) -> BatcherLimits:
    """The limits with the window that the law finds best at this rate."""
    windows = (round(share * OBJECTIVE_SECONDS * 1e6) for share in WINDOW_SHARES)
    candidates = tuple(BatcherLimits(SIZE, window, room) for window in windows)
    search = WindowSearch(
        current=candidates[-1],
        law=law,
        instances=1,
        rate_per_second=rate,
        objectives=(Limit(LatencyMetric.LATENCY, 95.0, OBJECTIVE_SECONDS),),
        candidates=candidates,
    )
    while not search.ended:
        search = try_next(search)
    return min(candidates, key=lambda one: (search.seconds[one], one[1]))


def stepped(law: ServiceLaw, limits: BatcherLimits, rate: float) -> Steps:
    """Requests at this rate by the server's rules."""
    moments = np.cumsum(np.random.default_rng(5).exponential(1.0 / rate, 20_000))
    return TritonSteps(law, with_limits(limits, 1)).run(moments)


@pytest.mark.parametrize("room", [0, 64], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("utilization", [0.05, 0.2, 0.4, 0.6, 0.8])
def test_the_window_is_no_worse_than_that_of_the_books_algorithm(utilization, room):
    """Mean and p95 by the server's rules, from light traffic to a busy server.

    The book's window is for the batch that is full at the present rate, at most 30 % of the
    objective; in light traffic it waits for nobody, so that ours is shorter.
    """
    full = with_limits(BatcherLimits(SIZE, 0, room), 1)
    rate = utilization * saturation_per_second(BOOK, full)
    ours = chosen(BOOK, rate, room)
    book = adaptive_window_seconds(0.0, SIZE, rate, OBJECTIVE_SECONDS)
    assert ours.max_queue_delay_microseconds <= WINDOW_SHARE_OF_OBJECTIVE * OBJECTIVE_SECONDS * 1e6
    theirs = ours._replace(max_queue_delay_microseconds=round(book * 1e6))
    mine, other = stepped(BOOK, ours, rate), stepped(BOOK, theirs, rate)
    assert np.nanmean(mine.latency_seconds) <= 1.03 * np.nanmean(other.latency_seconds)
    assert mine.percentile(95) <= 1.03 * other.percentile(95)
    assert mine.lost_ratio <= other.lost_ratio + 0.001
    if utilization <= 0.2:
        assert ours.max_queue_delay_microseconds == 0


def test_the_law_ranks_windows_as_the_servers_rules_do():
    """The window that the law finds best is within 5 % of the best by the rules, in the mean."""
    for utilization in (0.3, 0.7):
        rate = utilization * saturation_per_second(LAW, with_limits(BatcherLimits(8, 0, 0), 1))
        candidates = [BatcherLimits(8, window, 0) for window in (0, 20_000, 100_000, 200_000)]
        means = {one: np.nanmean(stepped(LAW, one, rate).latency_seconds) for one in candidates}
        search = WindowSearch(
            current=candidates[0],
            law=LAW,
            instances=1,
            rate_per_second=rate,
            objectives=(),
            candidates=tuple(candidates),
        )
        while not search.ended:
            search = try_next(search)
        best = min(candidates, key=lambda one: search.seconds[one])
        assert means[best] <= 1.05 * min(means.values())
