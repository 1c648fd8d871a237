"""The fit of a configuration: what it trusts, when it stops, and what it belongs to."""

from dataclasses import replace

import pytest

from servingslo.estimation.law import fit as service_law
from servingslo.estimation.law import trust
from servingslo.estimation.law.configuration import CARD_SEPARATOR, Configuration
from servingslo.estimation.law.fit import FIT_MEMORY_WINDOWS, PRIOR_SEQUENCE_RATIO, LawState
from servingslo.estimation.law.rows import Row
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.reasons import Reason


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
        fit, _ = trust.judge(service_law.learn(fit, [row]))
    return LawState(fits=(fit, *state.fits[1:]))


def test_exact_windows_give_the_exact_law() -> None:
    """Thirty windows without error: a, b and c to within a tenth of a percent."""
    state = _learnt(LawState(), ONE, FAST, 30)
    _, found = trust.judge(state.fits[0])
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
    _, found = trust.judge(state.fits[0])
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
    _, found = trust.judge(state.fits[0])
    assert not found.trusted
    assert found.law is None
    assert found.reason is Reason.CONFIGURATION_CHANGED
    back = service_law.select_configuration(state, ONE)
    assert trust.judge(back.fits[0])[1].trusted


def test_a_card_that_is_not_told_is_no_other_card() -> None:
    """An outage of the GPU exporter keeps the law, and so does the first word of it."""
    untold = replace(ONE, gpu_product=None)
    state = _learnt(LawState(), untold, FAST, 30)
    for configuration in (ONE, untold, ONE):
        state = service_law.select_configuration(state, configuration)
        assert len(state.fits) == 1
        assert trust.judge(state.fits[0])[1].source == "fit"
    assert state.fits[0].configuration == ONE


def test_a_second_kind_of_card_in_the_fleet_inherits_the_law() -> None:
    """What was learnt on one of them holds until windows say otherwise."""
    state = _learnt(LawState(), ONE, FAST, 30)
    mixed = replace(ONE, gpu_product=CARD_SEPARATOR.join(("A100", "H100")))
    state = service_law.select_configuration(state, mixed)
    _, found = trust.judge(state.fits[0])
    assert (found.trusted, found.source) == (True, "last-trusted")
    state = _learnt(state, mixed, SLOW, 60)
    assert trust.judge(state.fits[0])[1].source == "fit"


def test_law_that_stops_predicting_is_not_used() -> None:
    """The card slows down to half: distrusted at once, learnt anew, trusted again."""
    state = _learnt(LawState(), ONE, FAST, 60)
    wrong = _learnt(state, ONE, SLOW, 15)
    _, found = trust.judge(wrong.fits[0])
    assert not found.trusted
    assert found.reason is Reason.MODEL_DOES_NOT_PREDICT
    _, later = trust.judge(_learnt(wrong, ONE, SLOW, 120).fits[0])
    assert later.trusted
    assert later.law is not None
    assert later.law.step_seconds(30.0) == pytest.approx(SLOW.step_seconds(30.0), rel=0.05)


def test_a_law_of_a_window_that_never_was_gives_nothing_away_and_is_forgotten() -> None:
    """Among the first windows one tells of twenty times the work: nothing is sized by it.

    No count is given back by a law that is wrong by half, and it does not outweigh what follows.
    """
    fit = service_law.select_configuration(LawState(), ONE).fits[0]
    first, *others = _rows(FAST, 60)
    for row in (*others[:2], replace(first, x=tuple(20.0 * value for value in first.x))):
        fit = service_law.learn(fit, [row])
    for number, row in enumerate(others[2:]):
        fit, found = trust.judge(service_law.learn(fit, [row]))
        if number >= service_law.LEAST_SCORED_WINDOWS and not found.trusted and found.law:
            assert found.law.step_seconds(20.0) > 0.5 * FAST.step_seconds(20.0), number
    assert found.trusted
    assert found.law is not None
    assert found.law.step_seconds(30.0) == pytest.approx(FAST.step_seconds(30.0), rel=0.05)


def test_a_law_that_was_refuted_never_comes_back() -> None:
    """The card slows down to half while as many run as ever: nothing identifies the new law yet."""
    state = _learnt(LawState(), ONE, FAST, 60)
    fit = state.fits[0]
    rows = [row for row in _rows(SLOW, 40) if row.sequences == _rows(SLOW, 40)[0].sequences]
    refuted = False
    for number in range(120):
        fit, found = trust.judge(service_law.learn(fit, [rows[number % len(rows)]]))
        refuted = refuted or found.reason is Reason.MODEL_DOES_NOT_PREDICT
        if refuted:
            assert found.source != "last-trusted"
    assert refuted


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


def test_one_concurrency_alone_does_not_identify_the_law() -> None:
    """Windows that are all alike predict each other well and say nothing of twice the load.

    What another sequence costs stays what it is on engines that were measured.
    """
    state = service_law.select_configuration(LawState(), ONE)
    fit = service_law.learn(state.fits[0], [])
    for _ in range(40):
        fit = service_law.learn(fit, _rows(FAST, 1))
    _, found = trust.judge(fit)
    assert not found.trusted
    assert found.reason is Reason.MODEL_NOT_IDENTIFIABLE
    assert found.fit_error is not None
    assert found.fit_error < 0.01
    assert found.law is not None
    ratio = found.law.step_per_sequence_seconds / found.law.step_fixed_seconds
    assert ratio == pytest.approx(PRIOR_SEQUENCE_RATIO, rel=0.01)
