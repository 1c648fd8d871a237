"""The law of dynamic batches out of counters that add a batch once for each request in it."""

import numpy as np
import pytest

from servingslo.estimation.law.batch_rows import (
    WholeRequests,
    batch_rows,
    counted_rows,
    summary_deltas,
)
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import LawFit, learn
from servingslo.estimation.law.trust import LawEstimate, distrust_if_size_misfits, judge
from servingslo.estimation.requests.lengths import LengthState
from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows.counters import Window
from servingslo.models.engine.service_time import DynamicBatcher, ServiceLaw
from servingslo.models.waits.dynamic_batches import BatchTimes, saturation_per_second

LAW = ServiceLaw(
    step_fixed_seconds=0.06, step_per_sequence_seconds=0.01, prefill_per_token_seconds=0.0
)
BATCHER = DynamicBatcher(largest_batch=8, window_seconds=0.02)
WINDOW_SECONDS = 15.0


def window(utilization: float, batcher: DynamicBatcher = BATCHER, law: ServiceLaw = LAW) -> Window:
    """What the counters of a server grow by at this share of its saturation."""
    rate = utilization * saturation_per_second(law, batcher)
    times = BatchTimes(law, batcher, rate)
    requests = rate * WINDOW_SECONDS
    ran = float(times.weight @ (times.latency_seconds - times.wait_seconds)) * requests
    return Window(
        pod="a",
        engine="m",
        seconds=WINDOW_SECONDS,
        finished=requests,
        generated_tokens=requests,
        executions=requests / times.batch_mean,
        request_seconds=ran + 1.0,
        queued_seconds=1.0,
    )


@pytest.mark.parametrize("instances", [1, 2])
def test_law_is_found_from_loads_that_differ(instances):
    """Twenty windows between a tenth and nine tenths of saturation; T(b) at both ends is right."""
    batcher = DynamicBatcher(largest_batch=8, window_seconds=0.02, instances=instances)
    fit = LawFit(configuration=Configuration())
    for utilization in np.linspace(0.1, 0.9, 20):
        fit = learn(fit, batch_rows(window(utilization, batcher), batcher))
    _, found = judge(fit)
    assert found.trusted, found
    assert found.law is not None
    for batch in (1, 8):
        assert found.law.step_seconds(batch) == pytest.approx(LAW.step_seconds(batch), rel=0.1)


@pytest.mark.parametrize("per_request", [0.001, 0.01])
def test_one_load_alone_takes_no_full_batch_for_short(per_request):
    """Where loads do not tell both numbers apart, a full batch is at most 10 % short."""
    law = ServiceLaw(
        step_fixed_seconds=0.06,
        step_per_sequence_seconds=per_request,
        prefill_per_token_seconds=0.0,
    )
    fit = LawFit(configuration=Configuration())
    for _ in range(20):
        fit = learn(fit, batch_rows(window(0.4, law=law), BATCHER))
    _, found = judge(fit)
    assert found.law is not None
    assert found.law.step_seconds(8) >= 0.9 * law.step_seconds(8)


def test_nothing_is_said_by_a_window_in_which_little_ran():
    """Of a server that just started, of an idle one, and of other runtimes."""
    assert batch_rows(Window(pod="a", engine="m", seconds=15.0, finished=3.0), BATCHER) == ()
    few = Window(
        pod="a", engine="m", seconds=15.0, finished=3.0, executions=2.0, request_seconds=1.0
    )
    assert batch_rows(few, BATCHER) == ()


def test_a_batch_of_rows_is_one_of_fewer_requests():
    """Requests of four rows each: two of them are a full batch of eight."""
    state = LengthState(finished=100.0, generated_tokens=400.0)
    found = WholeRequests.of(BATCHER, state).batcher
    assert found is not None
    assert found.largest_batch == 2
    assert WholeRequests.of(BATCHER, LengthState()).batcher == BATCHER


def counts(seconds: dict[int, float], executions: int = 20) -> dict[int, tuple[int, int]]:
    """So many executions of each size."""
    return {size: (executions, round(1e6 * executions * each)) for size, each in seconds.items()}


def learnt(table: dict[int, float], often: int = 1) -> LawEstimate:
    """The law fitted from the time of each size, the first of them seen more often."""
    fit = LawFit(configuration=Configuration())
    for _ in range(20):
        fit = learn(fit, counted_rows({}, counts(table)))
        for _ in range(often):
            fit = learn(fit, counted_rows({}, counts(dict([next(iter(table.items()))]))))
    return judge(fit)[1]


def test_time_by_size_gives_the_law_itself():
    """What was counted before is not counted again; counts that fell are of a new load."""
    table = {size: LAW.step_seconds(size) for size in (1, 2, 5)}
    found = distrust_if_size_misfits(learnt(table), [counts(table)])
    assert found.trusted
    assert found.law is not None
    assert found.law.step_seconds(8) == pytest.approx(LAW.step_seconds(8), rel=0.01)
    later = {**counts(table), 2: (30, counts(table)[2][1] + 10_000_000)}
    (row,) = counted_rows(counts(table), later)
    assert row.x == pytest.approx((1.0, 2.0, 0.0))
    assert len(counted_rows(later, counts(table))) == 3


def test_a_law_that_fails_at_one_size_is_not_trusted_however_seldom_it_runs():
    """A step that the mean hides; fewer than eight executions say nothing yet."""
    table = {1: 0.03, 2: 0.034, 3: 0.038, 6: 0.108}
    found = learnt({size: table[size] for size in (1, 2, 3)}, often=5)
    assert found.trusted
    judged = distrust_if_size_misfits(found, [counts(table, executions=8)])
    assert not judged.trusted
    assert judged.fit_error is not None
    assert judged.fit_error > 0.4
    assert distrust_if_size_misfits(found, [counts(table, executions=7)]).trusted


def test_summaries_tell_the_percentiles_of_the_worst_server():
    """Each quantile is the larger one; between two it lies between both; without them nothing."""
    engines = [
        EngineSample(engine="m", latency_quantiles={"0.5": 0.1, "0.95": 0.3, "0.99": 0.6}),
        EngineSample(engine="m", latency_quantiles={"0.5": 0.2, "0.95": 0.25, "0.99": 0.4}),
    ]
    found = summary_deltas(engines, [window(0.5)])
    assert set(found) == {"latency"}
    seen = found["latency"]
    assert seen.quantile(95) == pytest.approx(0.3)
    assert seen.bucket_of(97)[:2] == (0.3, pytest.approx(0.6))
    assert seen.share_within(0.3) == pytest.approx((0.95, 0.95))
    assert summary_deltas([EngineSample(engine="m")], [window(0.5)]) == {}
    assert summary_deltas(engines, []) == {}
