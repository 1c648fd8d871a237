"""The law that a resource states: when it is used, how it is judged, what is kept of it."""

import json
from dataclasses import replace

import pytest

from servingslo.estimation.estimator import EstimatorState
from servingslo.estimation.law import calibration, trust
from servingslo.estimation.law import fit as service_law
from servingslo.estimation.law import stated as stated_law
from servingslo.estimation.law.calibration import CalibrationState
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import LawFit, LawState, ScoredLaw
from servingslo.estimation.law.rows import Row
from servingslo.estimation.stored_estimator import learned, restore
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Reason

TRUE = ServiceLaw(
    step_fixed_seconds=0.010,
    step_per_sequence_seconds=0.0002,
    prefill_per_token_seconds=0.00003,
)
HERE = Configuration(template_hash="t1", image="vllm:1", max_num_seqs=256)
NEVER_KNOWN = {"context_tokens": lambda: None}


def scaled(law, ratio):
    """The law with every time so many times as long."""
    return ServiceLaw(
        step_fixed_seconds=law.step_fixed_seconds * ratio,
        step_per_sequence_seconds=law.step_per_sequence_seconds * ratio,
        prefill_per_token_seconds=law.prefill_per_token_seconds * ratio,
        context_per_token_seconds=law.context_per_token_seconds * ratio,
    )


def row(sequences, prefill=200.0, law=TRUE, context=0.0):
    """What one window shows of an engine with this law."""
    step = law.step_seconds(sequences, prefill, context * sequences)
    return Row(
        x=(1.0 / step, sequences / step, prefill / step),
        error_ratio=0.01,
        sequences=sequences,
        prefill_per_step_tokens=prefill,
    )


def rows(count, **kwargs):
    """Windows at a concurrency that varies."""
    return [row(8.0 + 5.0 * (number % 4), **kwargs) for number in range(count)]


def after(windows, law, fit=None):
    """The fit of the configuration after these windows, the stated law judged by them."""
    fit = fit or LawFit(configuration=HERE)
    for one in windows:
        fit = stated_law.score_stated(fit, law, [one], **NEVER_KNOWN)
        fit = service_law.learn(fit, [one])
    return fit


def judged(fit, law):
    """The estimate."""
    return trust.law_in_force(LawState(fits=(fit,)), law)[1]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(LawState(), id="no-pod-was-seen"),
        pytest.param(LawState(fits=(LawFit(configuration=HERE),)), id="no-window-was-seen"),
        pytest.param(LawState(fits=(after(rows(3), TRUE),)), id="too-few-windows"),
    ],
)
def test_the_stated_law_is_used_until_there_is_a_fit(state):
    """From the first moment, and said to be the spec's."""
    _, estimate = trust.law_in_force(state, TRUE)
    assert (estimate.law, estimate.trusted) == (TRUE, True)
    assert (estimate.source, estimate.reason) == ("spec", Reason.LAW_FROM_SPEC)
    _, without = trust.law_in_force(state, None)
    assert not without.trusted


def test_the_last_trusted_fit_goes_before_the_stated_law():
    """New limits on the same engine: what was fitted on it is known better than what is stated."""
    fit, _ = trust.judge(after(rows(40), None))
    other = replace(HERE, template_hash="t2", max_num_seqs=64)
    state = service_law.select_configuration(LawState(fits=(fit,)), other)
    _, estimate = trust.law_in_force(state, scaled(TRUE, 1.1))
    assert estimate.source == "last-trusted"


def test_the_stated_law_is_used_again_for_another_engine():
    """Another image starts from nothing, and so does the score of the stated law."""
    fit, _ = trust.judge(after(rows(40), scaled(TRUE, 2.0)))
    other = replace(HERE, template_hash="t2", image="vllm:2")
    state = service_law.select_configuration(LawState(fits=(fit,)), other)
    _, estimate = trust.law_in_force(state, scaled(TRUE, 2.0))
    assert (estimate.source, estimate.sample_count) == ("spec", 0)


@pytest.mark.parametrize(
    ("ratio", "windows", "used"),
    [
        pytest.param(1.14, 7, True, id="within-the-bound"),
        pytest.param(0.86, 7, True, id="within-the-bound-below"),
        pytest.param(1.16, 7, False, id="too-slow"),
        pytest.param(0.84, 7, False, id="too-fast"),
        pytest.param(3.0, 3, True, id="three-windows-are-too-few"),
        pytest.param(3.0, 4, False, id="four-windows-are-enough"),
    ],
)
def test_the_stated_law_must_predict_as_well_as_a_fit(ratio, windows, used):
    """Off by more than 15 % over four windows or more: not used, and said why."""
    law = scaled(TRUE, ratio)
    estimate = judged(after(rows(windows), law), law)
    assert estimate.trusted is used
    assert estimate.stated_error_ratio == pytest.approx(min(abs(ratio - 1.0), 1.0), abs=1e-6)
    expected = Reason.LAW_FROM_SPEC if used else Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT
    assert estimate.reason is expected
    assert estimate.source == ("spec" if used else "fit")


def test_a_corrected_law_is_used_at_once():
    """The score of the law that was wrong is not that of another one."""
    wrong = scaled(TRUE, 3.0)
    fit = after(rows(6), wrong)
    assert not judged(fit, wrong).trusted
    estimate = judged(fit, TRUE)
    assert (estimate.source, estimate.sample_count, estimate.fit_error) == ("spec", 0, None)
    assert after(rows(1), TRUE, fit).stated.window_count == 1


def test_a_law_that_is_no_longer_stated_is_forgotten():
    """Nothing of it is stored then."""
    assert after(rows(1), None, after(rows(6), TRUE)).stated is None


def test_windows_that_judge_no_fit_judge_no_stated_law():
    """What a window shows of the first token only estimates the busy time."""
    unscored = [replace(one, scored=False) for one in rows(10)]
    assert after(unscored, scaled(TRUE, 3.0)).stated is None


def test_the_context_term_counts_at_the_mean_context():
    """d·k̄ is in the time of a sequence; while k̄ is unknown the law is not judged."""
    law = replace(TRUE, context_per_token_seconds=2e-7)
    seen = rows(6, law=law, context=1500.0)
    known = stated_law.score_stated(LawFit(configuration=HERE), law, seen, lambda: 1500.0)
    assert known.stated.error_ratio < 1e-9
    unknown = stated_law.score_stated(LawFit(configuration=HERE), law, seen, lambda: None)
    assert unknown.stated is None


def test_what_became_of_the_stated_law_survives_a_restart():
    """A law that was refused is not tried again for four windows; corrections go with the law."""
    law = ServiceLaw(
        step_fixed_seconds=0.0123456789,
        step_per_sequence_seconds=1 / 3000,
        prefill_per_token_seconds=0.00009,
        context_per_token_seconds=5e-8,
    )
    score = ScoredLaw(law=law, error_ratio=0.25, window_count=7)
    state = EstimatorState(
        law=LawState(fits=(LawFit(configuration=HERE, stated=score),)),
        calibration=CalibrationState(log_ratios={"ttft": 0.2}, stated=law),
    )
    back = restore(json.loads(json.dumps(learned(state))))
    assert back.law.fits[0].stated == score
    assert back.calibration == state.calibration
    assert judged(back.law.fits[0], law).reason is Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT


def test_corrections_belong_to_the_law_that_predicted():
    """What the stated law was off by is no correction of a fit, nor of another stated law."""
    state = CalibrationState(log_ratios={"ttft": 0.4}, stated=TRUE)
    assert calibration.of_law(state, TRUE) == state
    assert calibration.of_law(state, None) == CalibrationState(log_ratios={})
    other = scaled(TRUE, 1.1)
    assert calibration.of_law(state, other) == CalibrationState(log_ratios={}, stated=other)
