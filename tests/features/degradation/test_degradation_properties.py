"""The share of a fallback over random stories.

1. It is never above maxShare, nor above what a full fallback took, for five minutes.
2. It is never raised while a further replica can be had, or while no gateway counts.
3. Two steps are at least half a minute apart, unless the fallback is not counted.
4. A raise is at most the first step, or twice the share before; it follows counts of the fallback
   that began after the step before. A step back leaves at least half, or less than the first step.
5. When nothing is wanted any more, it goes back to none.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.gateway.fallback import FallbackUse
from servingslo.features.degradation.capacity import FIRST_STEP_RATIO
from servingslo.features.degradation.knob import Situation, next_share
from servingslo.features.degradation.share import THOUSANDTHS, DegradationDecision
from servingslo.features.degradation.steps import (
    FALL,
    FULL_SECONDS,
    GROWTH,
    STEP_SECONDS,
    StepMemory,
    followed,
)
from servingslo.reasons import Reason

TICK_SECONDS = 15.0
SMALL = 2.0 / THOUSANDTHS

# Of one tick: the wanted share, whether a further replica can be had, whether the gateway counts,
# the share that the fallback refuses, the mean of its answers, and whether its counts are seen.
ticks = st.tuples(
    st.floats(0.0, 1.0),
    st.booleans(),
    st.booleans(),
    st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    st.floats(0.5, 5.0),
    st.booleans(),
)


def _told(share: float, most: float) -> DegradationDecision:
    return DegradationDecision(
        reason=Reason.DEGRADED,
        route="chat",
        fallback="small",
        max_share_ratio=most,
        before=share,
        after=share,
    )


def _played(story, most):
    """Each tick with the share before it, its outcome and its memory before."""
    share, memory, began, found = 0.0, None, 0.0, []
    for number, (wanted, can_grow, counted, refused, mean, seen) in enumerate(story):
        now = 1000.0 + TICK_SECONDS * number
        memory = followed(memory, share, now)
        use = None
        if share > 0.0 and seen:
            use = FallbackUse(
                requests_per_second=10.0 * share,
                refused_per_second=10.0 * share * refused,
                refused_at_gateway_per_second=0.0,
                mean_seconds=mean,
                requests=150.0 * share,
                began_seconds=began,
            )
        situation = Situation(
            now_seconds=now,
            wanted=wanted,
            cause=None if can_grow else Reason.MAX_REPLICAS_REACHED,
            counted=counted,
        )
        outcome = next_share(_told(share, most), memory, use, situation)
        assert isinstance(outcome.decision, DegradationDecision)
        assert isinstance(outcome.memory, StepMemory)
        found.append((now, memory, use, situation, outcome.decision))
        memory, share, began = outcome.memory, outcome.decision.after, now
    return found


@given(st.lists(ticks, min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_never_above_its_bounds(story, most) -> None:
    """Property 1."""
    ceiling, until = 1.0, 0.0
    for now, _, _, _, decided in _played(story, most):
        assert 0.0 <= decided.after <= most
        if now < until and decided.change_reason is Reason.DEGRADATION_RAISED:
            assert decided.after <= ceiling
        if decided.change_reason in {Reason.FALLBACK_FULL, Reason.FALLBACK_UNSEEN}:
            assert decided.after < decided.before
            ceiling, until = decided.after, now + FULL_SECONDS


@given(st.lists(ticks, min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_never_raised_without_cause(story, most) -> None:
    """Property 2."""
    for _, _, _, situation, decided in _played(story, most):
        if decided.after > decided.before:
            assert situation.cause is not None
            assert situation.counted
            assert decided.change_reason is Reason.DEGRADATION_RAISED


@given(st.lists(ticks, min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_steps_have_a_size_and_a_time(story, most) -> None:
    """Properties 3 and 4."""
    last = None
    for now, memory, use, situation, decided in _played(story, most):
        if decided.change_reason is None:
            assert decided.after == decided.before
            continue
        if last is not None and decided.change_reason is not Reason.FALLBACK_UNSEEN:
            assert now - last >= STEP_SECONDS
        if decided.after > decided.before:
            assert decided.after <= max(FIRST_STEP_RATIO, GROWTH * decided.before)
            if decided.before:
                assert use is not None
                assert use.began_seconds >= memory.since_seconds
        elif decided.change_reason is Reason.DEGRADATION_LOWERED:
            least = FALL * decided.before - SMALL
            assert decided.after >= least or least < FIRST_STEP_RATIO
            assert decided.after >= situation.wanted - SMALL
        last = now


@given(st.lists(ticks, min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_it_goes_back_to_none(story, most) -> None:
    """Property 5, whatever was before; seven steps halve any share to nothing."""
    calm = (0.0, True, True, 0.0, 1.0, True)
    *_, (_, _, _, _, decided) = _played([*story, *([calm] * 60)], most)
    assert decided.after == 0.0


def test_a_raise_waits_for_its_verification() -> None:
    """Counts that began before the step say nothing of it."""
    memory = StepMemory(share=0.05, since_seconds=1000.0)
    early = FallbackUse(
        requests_per_second=1.0,
        refused_per_second=0.0,
        refused_at_gateway_per_second=0.0,
        mean_seconds=1.0,
        requests=15.0,
        began_seconds=999.0,
    )
    situation = Situation(now_seconds=1060.0, wanted=0.5, cause=Reason.QUEUED)
    held = next_share(_told(0.05, 1.0), memory, early, situation).decision
    assert isinstance(held, DegradationDecision)
    assert held.after == 0.05
    late = replace(early, began_seconds=1001.0)
    moved = next_share(_told(0.05, 1.0), memory, late, situation).decision
    assert isinstance(moved, DegradationDecision)
    assert moved.after == 0.1
