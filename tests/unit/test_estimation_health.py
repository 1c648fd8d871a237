"""Pods that lie, metrics that do not speak, cold starts, calibration, and configurations."""

import json
from dataclasses import replace

import pytest

from servingslo.estimation import calibration, cold_start, service_law
from servingslo.estimation.calibration import EMPTY_CALIBRATION
from servingslo.estimation.cold_start import ColdStartState
from servingslo.estimation.estimator import Estimate, EstimatorState, FleetSample, update
from servingslo.estimation.freshness import assess
from servingslo.estimation.histograms import HistogramDelta, ObservedLatency
from servingslo.estimation.law_rows import Row
from servingslo.estimation.learned import learned, restore
from servingslo.estimation.sample import EngineSample, GPUSample, HistogramSample, PodSample
from servingslo.estimation.service_law import (
    CARD_SEPARATOR,
    FIT_MEMORY_WINDOWS,
    Configuration,
    LawState,
)
from servingslo.models.service_time import ServiceLaw
from servingslo.reasons import Reason


def _engine(
    served: float, *, running: float = 4.0, waiting: float = 0.0, age: float = 1.0
) -> EngineSample:
    return EngineSample(
        engine="0",
        gauges_age_seconds=age,
        counters_age_seconds=age,
        histograms_age_seconds=age,
        running=running,
        waiting=waiting,
        kv_usage_ratio=0.3,
        generation_tokens_total=200.0 * served,
        prompt_tokens_total=1000.0 * served,
        finished_total={"stop": served},
        ttft_seconds=HistogramSample(
            upper_bounds=(1.0, float("inf")),
            cumulative_counts=(served, served),
            sum=0.1 * served,
            count=served,
        ),
    )


def _pod(name: str, *engines: EngineSample, xid_error: int = 0) -> PodSample:
    return PodSample(
        name=name,
        ready=True,
        age_seconds=1000.0,
        ready_for_seconds=900.0,
        engines=engines,
        gpus=(GPUSample(gpu="0", age_seconds=1.0, xid_error=xid_error),),
    )


def _after_ticks(count: int, sick: EngineSample | None, *, xid_error: int = 0) -> Estimate:
    """A healthy pod that serves 30 a tick beside a sick one that does not change."""
    state, estimate = EstimatorState(), None
    for number in range(count):
        pods = (
            _pod("well", _engine(100.0 + 30.0 * number)),
            _pod("sick", *([sick] if sick else []), xid_error=xid_error),
        )
        state, estimate = update(state, FleetSample(time_seconds=15.0 * number, pods=pods))
    assert estimate is not None
    return estimate


@pytest.mark.parametrize(
    ("sick", "why"),
    [
        pytest.param(_engine(50.0, waiting=9.0), "serving-nothing", id="queue-does-not-move"),
        pytest.param(_engine(50.0, running=7.0), "zero-throughput", id="running-without-tokens"),
        pytest.param(_engine(50.0, running=0.0), "receiving-nothing", id="no-request-ever-comes"),
        pytest.param(None, "metrics-missing", id="no-metrics"),
        pytest.param(_engine(50.0, age=500.0), "metrics-stale", id="old-metrics"),
    ],
)
def test_ready_pod_that_serves_nothing_is_no_capacity(sick: EngineSample | None, why: str) -> None:
    """Readiness is the pod's own word; throughput is not."""
    estimate = _after_ticks(6, sick)
    assert estimate.unreliable_pods == (("sick", why),)
    assert estimate.reliable_pods == ("well",)


def test_one_silent_window_is_not_proof() -> None:
    """A long prefill may span a scrape interval."""
    assert _after_ticks(2, _engine(50.0, running=7.0)).unreliable_pods == ()


@pytest.mark.parametrize(
    ("xid_error", "lies"),
    [
        pytest.param(79, True, id="fallen-off-the-bus"),
        pytest.param(13, False, id="application-error"),
        pytest.param(0, False, id="none"),
    ],
)
def test_fatal_gpu_errors_exclude_a_pod(xid_error: int, *, lies: bool) -> None:
    """Errors that need a reset exclude the pod, those of an application do not."""
    estimate = _after_ticks(1, _engine(50.0), xid_error=xid_error)
    assert estimate.unreliable_pods == ((("sick", f"xid-error-{xid_error}"),) if lies else ())


@pytest.mark.parametrize(
    ("engines", "reason"),
    [
        pytest.param([_engine(1.0), _engine(1.0)], Reason.METRICS_FRESH, id="fresh"),
        pytest.param([_engine(1.0), None], Reason.METRICS_FRESH, id="half-speak-for-all"),
        pytest.param([None, None], Reason.METRICS_MISSING, id="missing"),
        pytest.param([_engine(1.0, age=90.0), None], Reason.METRICS_STALE, id="stale"),
        pytest.param(
            [EngineSample(engine="0", gauges_age_seconds=1.0, nan_metrics=("running",)), None],
            Reason.METRICS_NOT_A_NUMBER,
            id="nan",
        ),
    ],
)
def test_missing_stale_and_nan_are_three_outcomes(
    engines: list[EngineSample | None], reason: Reason
) -> None:
    """Each has its own reason, and none of them is an empty workload."""
    pods = [_pod(f"p{k}", *([e] if e else [])) for k, e in enumerate(engines)]
    assert assess(pods, 60.0).reason is reason


def test_pod_that_just_started_is_not_missed() -> None:
    """It has not been scraped yet."""
    new = replace(_pod("new"), ready_for_seconds=5.0)
    found = assess([_pod("old", _engine(1.0)), new], 60.0)
    assert found.coverage_ratio == 1.0
    assert found.unseen == ()


def _started(name: str, ready_after: float, scheduled_after: float) -> PodSample:
    return PodSample(
        name=name, ready_after_seconds=ready_after, scheduled_after_seconds=scheduled_after
    )


def test_cold_start_is_measured_without_waiting_for_a_gpu() -> None:
    """Ten minutes unschedulable are shortage; the image and the weights took 90 s all the same."""
    pods = [_started("a", 95.0, 5.0), _started("b", 90.0, 5.0), _started("c", 690.0, 600.0)]
    found = cold_start.estimate(cold_start.observe(ColdStartState(), pods))
    assert found.source == "measured"
    assert found.sample_count == 3
    assert found.mean_seconds == pytest.approx(5.0 + (90.0 + 85.0 + 90.0) / 3)
    assert found.p90_seconds > found.mean_seconds


def test_of_many_pods_the_newest_count_and_the_measure_stands_still() -> None:
    """Forty old pods took 60 s, ten new ones 170 s, in whatever order they are listed."""
    old = [_started_at(f"old-{number:02d}", 60.0, age=9000.0 - number) for number in range(40)]
    new = [_started_at(f"new-{number:02d}", 170.0, age=400.0 - number) for number in range(10)]
    for pods in ([*old, *new], [*new, *old]):
        state, means = ColdStartState(), []
        for _ in range(4):
            state = cold_start.observe(state, pods)
            means.append(cold_start.estimate(state).mean_seconds)
        # Six old ones are left of the sixteen that are remembered.
        assert means == [pytest.approx((10 * 170.0 + 6 * 60.0) / 16)] * 4


def _started_at(name: str, ready_after: float, age: float) -> PodSample:
    return PodSample(name=name, ready_after_seconds=ready_after, age_seconds=age)


def test_a_cold_start_is_split_where_the_start_of_containers_was_seen() -> None:
    """Scheduling, image and loading add up to the mean; without the start, loading has both."""
    seen = [
        PodSample(
            name=str(number),
            scheduled_after_seconds=4.0,
            started_after_seconds=4.0 + image,
            ready_after_seconds=4.0 + image + 50.0,
        )
        for number, image in enumerate((20.0, 30.0, 40.0))
    ]
    state = cold_start.observe(ColdStartState(), seen)
    found = cold_start.estimate(state)
    assert found.scheduling_mean_seconds == pytest.approx(4.0)
    assert found.image_mean_seconds == pytest.approx(30.0)
    assert found.loading_mean_seconds == pytest.approx(50.0)
    assert found.mean_seconds == pytest.approx(84.0)
    stored = learned(replace(EstimatorState(), cold_start=state))
    assert restore(json.loads(json.dumps(stored))).cold_start == state
    whole = cold_start.estimate(cold_start.observe(ColdStartState(), [_started("a", 84.0, 4.0)]))
    assert whole.image_mean_seconds is None
    assert whole.loading_mean_seconds == pytest.approx(80.0)


def _serving(name: str, age: float, tokens: float | None, **fields: float) -> PodSample:
    """A pod that became ready 90 s after its creation and was scraped 2 s ago."""
    engine = EngineSample(engine="0", counters_age_seconds=2.0, generation_tokens_total=tokens)
    return PodSample(
        name=name, age_seconds=age, ready_after_seconds=90.0, engines=(engine,), **fields
    )


def test_the_first_token_after_readiness_is_bounded_by_the_first_scrape_that_has_one() -> None:
    """Ready at 90 s: no token in the scrape of 95 s, some in that of 103 s, so within 13 s."""
    state = ColdStartState()
    for age, tokens in ((97.0, 0.0), (105.0, 40.0), (120.0, 900.0)):
        state = cold_start.observe(state, [_serving("a", age, tokens), _serving("b", age, 0.0)])
    found = cold_start.estimate(state)
    assert found.first_token_at_most_seconds == pytest.approx(13.0)
    assert found.mean_seconds == pytest.approx(90.0)


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(_serving("a", 97.0, None), id="not-exported"),
        pytest.param(_serving("a", 7200.0, 9e6), id="seen-long-after"),
        pytest.param(_serving("a", 97.0, 40.0, restarts=1), id="restarted"),
    ],
)
def test_a_first_token_that_was_not_seen_is_unknown(late: PodSample) -> None:
    """A pod that the operator met hours later says nothing about its first token."""
    state = cold_start.observe(ColdStartState(), [_started("a", 90.0, 4.0)])
    assert (
        cold_start.estimate(cold_start.observe(state, [late])).first_token_at_most_seconds is None
    )


def test_cold_start_has_a_prior_until_a_pod_started() -> None:
    """Minutes, and it says that it is a prior."""
    found = cold_start.estimate(ColdStartState())
    assert found.source == "prior"
    assert 60.0 <= found.mean_seconds <= found.p90_seconds


def _latency(*counts: float) -> ObservedLatency:
    return ObservedLatency(
        delta=HistogramDelta(upper_bounds=(0.1, 0.2, 0.4), counts=counts, sum=1.0)
    )


@pytest.mark.parametrize(
    ("predicted", "low", "high"),
    [
        pytest.param(0.05, 1.5, 2.0, id="observed-higher"),
        pytest.param(0.15, 1.0, 1.0, id="same-bucket-is-right"),
        pytest.param(0.30, 0.7, 0.75, id="observed-lower"),
    ],
)
def test_calibration_moves_slowly_towards_the_observed_ratio(
    predicted: float, low: float, high: float
) -> None:
    """p99 observed in 0.1–0.2 s: bounds hold, and a prediction inside the bucket is not judged."""
    state = EMPTY_CALIBRATION
    latency = _latency(0.0, 1000.0, 0.0, 0.0)
    state = calibration.learn(state, {"ttft": {99.0: predicted}}, {"ttft": latency})
    assert abs(calibration.ratios(state).get("ttft", 1.0) - 1.0) < 0.15
    for _ in range(50):
        state = calibration.learn(state, {"ttft": {99.0: predicted}}, {"ttft": latency})
    assert low <= calibration.ratios(state)["ttft"] <= high


def _rows(law: ServiceLaw, count: int) -> list[Row]:
    rows = []
    for number in range(count):
        sequences, prefill = 10.0 + 3.0 * (number % 7), 5.0 + 4.0 * (number % 5)
        step = law.step_seconds(sequences, prefill)
        rows.append(
            Row(
                x=(1.0 / step, sequences / step, prefill / step),
                error_ratio=0.01,
                sequences=sequences,
                prefill_per_step_tokens=prefill,
            )
        )
    return rows


FAST = ServiceLaw(
    step_fixed_seconds=6.5e-3, step_per_sequence_seconds=1e-4, prefill_per_token_seconds=3e-5
)
SLOW = ServiceLaw(
    step_fixed_seconds=13e-3, step_per_sequence_seconds=2e-4, prefill_per_token_seconds=6e-5
)
ONE = Configuration(template_hash="v1", image="engine:1", gpu_product="H100", max_num_seqs=256)


def _learnt(state: LawState, configuration: Configuration, law: ServiceLaw, count: int) -> LawState:
    state = service_law.select_configuration(state, configuration)
    fit = state.fits[0]
    for row in _rows(law, count):
        fit, _ = service_law.judge(service_law.learn(fit, [row]))
    return LawState(fits=(fit, *state.fits[1:]))


def test_exact_windows_give_the_exact_law() -> None:
    """Thirty windows without error: a, b and c to within a tenth of a percent."""
    state = _learnt(LawState(), ONE, FAST, 30)
    _, found = service_law.judge(state.fits[0])
    assert found.trusted
    assert found.reason is Reason.MODEL_TRUSTED
    assert found.law is not None
    assert found.law.step_fixed_seconds == pytest.approx(FAST.step_fixed_seconds, rel=1e-2)
    assert found.law.step_per_sequence_seconds == pytest.approx(1e-4, rel=1e-2)
    assert found.law.prefill_per_token_seconds == pytest.approx(3e-5, rel=1e-2)


def test_new_limits_keep_the_law_of_the_same_engine() -> None:
    """Step times do not change with max_num_seqs; the law carries over and says so."""
    state = _learnt(LawState(), ONE, FAST, 30)
    state = service_law.select_configuration(
        state, replace(ONE, template_hash="v2", max_num_seqs=64)
    )
    _, found = service_law.judge(state.fits[0])
    assert found.trusted
    assert found.reason is Reason.CONFIGURATION_CHANGED
    assert found.source == "last-trusted"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"image": "engine:2"}, id="image"),
        pytest.param({"gpu_product": "L4"}, id="card"),
    ],
)
def test_another_engine_starts_from_nothing(changed: dict[str, str]) -> None:
    """The old law is not used for it, and is still there when the change is rolled back."""
    state = _learnt(LawState(), ONE, FAST, 30)
    state = service_law.select_configuration(state, replace(ONE, **changed))
    _, found = service_law.judge(state.fits[0])
    assert not found.trusted
    assert found.law is None
    assert found.reason is Reason.CONFIGURATION_CHANGED
    back = service_law.select_configuration(state, ONE)
    assert service_law.judge(back.fits[0])[1].trusted


def test_a_card_that_is_not_told_is_no_other_card() -> None:
    """An outage of the GPU exporter keeps the law, and so does the first word of it."""
    untold = replace(ONE, gpu_product=None)
    state = _learnt(LawState(), untold, FAST, 30)
    for configuration in (ONE, untold, ONE):
        state = service_law.select_configuration(state, configuration)
        assert len(state.fits) == 1
        assert service_law.judge(state.fits[0])[1].source == "fit"
    assert state.fits[0].configuration == ONE


def test_a_second_kind_of_card_in_the_fleet_inherits_the_law() -> None:
    """What was learnt on one of them holds until windows say otherwise."""
    state = _learnt(LawState(), ONE, FAST, 30)
    mixed = replace(ONE, gpu_product=CARD_SEPARATOR.join(("A100", "H100")))
    state = service_law.select_configuration(state, mixed)
    _, found = service_law.judge(state.fits[0])
    assert (found.trusted, found.source) == (True, "last-trusted")
    state = _learnt(state, mixed, SLOW, 60)
    assert service_law.judge(state.fits[0])[1].source == "fit"


def test_law_that_stops_predicting_is_not_used() -> None:
    """The card slows down to half: distrusted at once, learnt anew, trusted again."""
    state = _learnt(LawState(), ONE, FAST, 60)
    wrong = _learnt(state, ONE, SLOW, 15)
    _, found = service_law.judge(wrong.fits[0])
    assert not found.trusted
    assert found.reason is Reason.MODEL_DOES_NOT_PREDICT
    _, later = service_law.judge(_learnt(wrong, ONE, SLOW, 120).fits[0])
    assert later.trusted
    assert later.law is not None
    assert later.law.step_seconds(30.0) == pytest.approx(SLOW.step_seconds(30.0), rel=0.05)


def test_wild_windows_hardly_move_the_law() -> None:
    """One window in ten says a third of the step time; the law stays within a few percent."""
    fit = _learnt(LawState(), ONE, FAST, 60).fits[0]
    for number, row in enumerate(_rows(FAST, 60)):
        x = tuple(value * 3.0 for value in row.x) if number % 10 == 0 else row.x
        fit = service_law.learn(fit, [replace(row, x=x)])
    law = service_law.solution(fit)
    assert law is not None
    step = law[0] + law[1] * 20.0 + law[2] * 10.0
    assert step == pytest.approx(FAST.step_seconds(20.0, 10.0), rel=0.05)


def test_an_engine_that_drifts_is_followed_by_forgetting() -> None:
    """A tenth slower is no refutation, and after a memory's length the law is the new one."""
    slower = ServiceLaw(
        step_fixed_seconds=7.15e-3,
        step_per_sequence_seconds=1.1e-4,
        prefill_per_token_seconds=3.3e-5,
    )
    state = _learnt(LawState(), ONE, FAST, int(2 * FIT_MEMORY_WINDOWS))
    fit = _learnt(state, ONE, slower, int(2 * FIT_MEMORY_WINDOWS)).fits[0]
    law = service_law.solution(fit)
    assert law is not None
    step = law[0] + law[1] * 20.0 + law[2] * 10.0
    assert step == pytest.approx(slower.step_seconds(20.0, 10.0), rel=0.02)


def test_no_part_of_a_law_is_negative() -> None:
    """Steps that get shorter with more sequences are noise: they do not matter then."""
    fit = service_law.select_configuration(LawState(), ONE).fits[0]
    for number in range(60):
        sequences, prefill = 10.0 + 3.0 * (number % 7), 5.0 + 4.0 * (number % 5)
        step = 10e-3 - 1e-4 * sequences + 3e-5 * prefill
        row = Row(
            x=(1.0 / step, sequences / step, prefill / step),
            error_ratio=0.01,
            sequences=sequences,
            prefill_per_step_tokens=prefill,
        )
        fit = service_law.learn(fit, [row])
        law = service_law.solution(fit)
        assert law is not None
        assert min(law) >= 0.0


def test_one_concurrency_alone_does_not_identify_the_law() -> None:
    """Windows that are all alike predict each other well and say nothing of twice the load."""
    state = service_law.select_configuration(LawState(), ONE)
    fit = service_law.learn(state.fits[0], [])
    for _ in range(40):
        fit = service_law.learn(fit, _rows(FAST, 1))
    _, found = service_law.judge(fit)
    assert not found.trusted
    assert found.reason is Reason.MODEL_NOT_IDENTIFIABLE
    assert found.relative_error is not None
    assert found.relative_error < 0.01
