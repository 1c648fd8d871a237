"""What windows show of a law that bends: when it is found, how far it is known, what is kept."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from estimation_fleet import SimulatedFleet, poisson
from step_tables import EXPERTS, steps, table

from servingslo.estimation.estimate import Estimate
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.law.configuration import Configuration
from servingslo.estimation.law.fit import LawFit, LawState, law, learn, reach_of
from servingslo.estimation.law.rows import Row, regression_rows
from servingslo.estimation.law.seen import Bend, add_windows, bent_law, predicted_ratios
from servingslo.estimation.law.trust import judge
from servingslo.estimation.stored_estimator import learned, restore
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.plausible import is_law
from servingslo.models.engine.service_time import ServiceLaw
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
HERE = Configuration(template_hash="t1", image="vllm:1", max_num_seqs=256)
BENT = ServiceLaw(
    step_fixed_seconds=4e-3,
    step_per_sequence_seconds=5e-5,
    prefill_per_token_seconds=1.2e-5,
    loading_seconds=19e-3,
    loading_tokens=24.0,
    hidden_tokens=64.0,
)
STRAIGHT = replace(BENT, loading_seconds=0.0, loading_tokens=0.0, hidden_tokens=0.0)
# Prompts of a window of the rows below: tokens of each.
PROMPT_TOKENS = 1000.0
MOST_OF_A_ROW = 99.0
# As for a law of single steps, where windows saw it; beyond, as far as a standard error may be.
SEEN_ERROR, REACHED_ERROR = 0.05, 0.20
# Measured kernels leave any smooth law by up to 12 % at single counts.
KERNEL_ERROR = 0.06


def row(sequences: float, truth: ServiceLaw = BENT) -> Row:
    """A window at this concurrency: a prompt comes for each hundred tokens, alone in its step."""
    share = sequences / 100.0
    step = (1.0 - share) * truth.step_seconds(sequences)
    step += share * truth.step_seconds(sequences, PROMPT_TOKENS)
    return Row(
        x=(1.0 / step, sequences / step, share * PROMPT_TOKENS / step),
        error_ratio=0.01,
        sequences=sequences,
        prefill_per_step_tokens=share * PROMPT_TOKENS,
        prefill_share=share,
    )


def after(counts: list[float], truth: ServiceLaw = BENT, times: int = 10) -> LawFit:
    """The fit after windows at these concurrencies, several times."""
    fit = LawFit(configuration=HERE)
    for _ in range(times):
        for count in counts:
            fit = learn(fit, [row(count, truth)])
    return fit


FEW = [1.5, 2.0, 3.0, 4.0, 5.5, 7.0, 9.0, 12.0]
MANY = [*FEW, 16.0, 24.0, 36.0, 50.0]
# From so many on, steps account for the time of a window.
BUSY = [5.5, 7.0, 9.0, 12.0, 16.0, 20.0, 24.0, 30.0, 36.0, 50.0]


def played(cached_ratio: float = 0.0) -> Estimate:
    """Two engines of experts under conversation that swells from 2 to 14 requests a second each."""
    rng, seconds = np.random.default_rng(7), 600.0
    trace = read_trace(TRACE)
    arrivals = seconds * np.sqrt(poisson(16.0, seconds, rng) / seconds)
    chosen = rng.integers(0, len(trace), len(arrivals))
    fleet = SimulatedFleet(kind=engine_kind("h100-8b"), replicas=2, steps=table(EXPERTS))
    state, estimate = EstimatorState(), None
    prompts, outputs = (np.array(t)[chosen] for t in (trace.prompt_tokens, trace.output_tokens))
    for sample in fleet.run(arrivals, prompts, outputs, until=seconds, cached_ratio=cached_ratio):
        state, estimate = update(state, sample)
    assert estimate is not None
    return estimate


@pytest.mark.parametrize("cached_ratio", [0.0, 0.5], ids=["no-hits", "prefix-hits"])
def test_traffic_shows_the_bend_of_experts(cached_ratio: float) -> None:
    """Trusted, and right within what was seen; cached tokens are no prefill, but are attended."""
    found = played(cached_ratio).law
    assert found.trusted
    assert found.law is not None
    assert found.law.bends
    assert found.seen_sequences is not None
    seen = steps(EXPERTS)
    # Conversation attends 1,227 tokens: between these contexts.
    there = (seen.prefill_tokens == 0.0) & (seen.sequences >= 8.0)
    there &= seen.sequences <= found.seen_sequences
    low, high = (seen.seconds[there & (seen.context_tokens == k)] for k in (1024.0, 2048.0))
    truth = low + (high - low) * (1227.0 - 1024.0) / 1024.0
    counts = seen.sequences[there & (seen.context_tokens == 1024.0)]
    errors = [found.law.step_seconds(n) / t - 1.0 for n, t in zip(counts, truth, strict=True)]
    assert np.abs(errors).mean() <= KERNEL_ERROR


def test_steps_of_a_law_take_time() -> None:
    """A bend held while later cells leave no time for an empty step gives way to the line."""
    truth = replace(
        STRAIGHT, step_fixed_seconds=-2e-4, step_per_sequence_seconds=1e-3, hidden_tokens=64.0
    )
    cells = add_windows((), [row(count, truth) for count in BUSY], 0.999)
    bend = Bend(0.0, 64.0)
    fit = replace(after(MANY), cells=cells, bend=bend)
    assert bent_law(cells, bend).step_fixed_seconds == 0.0
    found = law(fit)
    assert found is not None
    assert found.step_fixed_seconds > 0.0
    assert reach_of(fit) is None


def test_a_line_stays_a_line() -> None:
    """Windows of a law without bends find none, and reach no further than before."""
    fit = after(MANY, STRAIGHT)
    assert fit.bend is None
    assert reach_of(fit) is None


def test_a_bend_is_known_only_so_far() -> None:
    """From a dozen sequences the law is not known for all 256; from fifty it is right there."""
    few, many = after(FEW), after(MANY)
    near, far = reach_of(few), reach_of(many)
    assert near is not None
    assert far is not None
    assert FEW[-1] <= near < 256.0
    assert near < far
    found, law_of_many = law(few), law(many)
    assert found is not None
    assert law_of_many is not None
    for known, most in ((found, near), (law_of_many, min(far, MOST_OF_A_ROW))):
        (ratio,) = predicted_ratios(known, [row(most)])
        assert ratio == pytest.approx(1.0, abs=REACHED_ERROR)


def test_a_law_that_bends_is_trusted_where_it_was_seen() -> None:
    """The gate asks for no more than that; the plan asks how far it reaches."""
    _, found = judge(after(FEW))
    assert found.trusted
    assert found.reach_sequences is not None


def test_an_earlier_law_that_bends_is_believed_where_engines_were_seen() -> None:
    """New limits: its bend is not found again, so that nothing says how far it reaches."""
    fit, _ = judge(after(FEW))
    _, found = judge(replace(fit, window_count=0, inherited=True, bend=None))
    assert found.law is not None
    assert found.law.bends
    assert found.reach_sequences == fit.sequences_high


@pytest.mark.parametrize(
    ("changes", "possible"),
    [({}, True), ({"step_per_sequence_seconds": 0.0}, True), ({"loading_seconds": 11.0}, False)],
    ids=["bent", "all-in-weights", "too-long"],
)
def test_a_step_that_only_loads_weights_is_a_step(
    changes: dict[str, float], possible: bool
) -> None:
    """Whatever part of a law its time is in."""
    assert is_law(replace(BENT, step_fixed_seconds=0.0, **changes)) is possible


def test_what_was_seen_is_bounded_and_forgotten() -> None:
    """Thousands of windows all over keep a bounded number of cells; old ones lose their weight."""
    rng = np.random.default_rng(3)
    cells = add_windows((), [row(float(n)) for n in rng.uniform(1.0, 99.0, 500)], 0.999)
    late = add_windows(cells, [row(50.0)] * 500, 0.999)
    assert len(cells) <= 32
    lightest = min(cells, key=lambda cell: cell.sequences)
    kept = next(cell for cell in late if cell.sequences == lightest.sequences)
    assert kept.weight == pytest.approx(lightest.weight * 0.999**500, rel=1e-6)


def without(stored: object, key: str) -> object:
    """What is stored, without this key at any depth."""
    if isinstance(stored, dict):
        return {name: without(value, key) for name, value in stored.items() if name != key}
    return [without(one, key) for one in stored] if isinstance(stored, list) else stored


def test_a_bent_law_survives_a_restart() -> None:
    """Stored and loaded, it predicts the same; a fit stored before there were bends still loads."""
    fit, found = judge(after(MANY))
    stored = json.loads(json.dumps(learned(EstimatorState(law=LawState(fits=(fit,))))))
    (again,) = restore(stored).law.fits
    assert found.law is not None
    assert again.trusted is not None
    for known in (law(again), again.trusted.law):
        assert known is not None
        assert predicted_ratios(known, [row(36.0)]) == pytest.approx([1.0], rel=1e-3)
    straight = after(MANY, STRAIGHT)
    old = json.loads(json.dumps(learned(EstimatorState(law=LawState(fits=(judge(straight)[0],))))))
    old = without(old, "cells")
    line = law(restore(old).law.fits[0])
    assert line is not None
    assert predicted_ratios(line, [row(36.0, STRAIGHT)]) == pytest.approx([1.0], rel=1e-3)


def test_speculation_counts_steps_of_a_token() -> None:
    """Each sequence gets two tokens a step, half of them guessed: the law is that of a token."""
    fit = LawFit(configuration=HERE)
    for count in BUSY * 10:
        share = count / 100.0
        step = (1.0 - share) * BENT.step_seconds(count)
        step += share * BENT.step_seconds(count, PROMPT_TOKENS)
        steps_made = 15.0 / step
        window = Window(
            pod="a",
            engine="0",
            seconds=15.0,
            running_before=count,
            running_after=count,
            step_count=steps_made,
            generated_tokens=2.0 * count * steps_made,
            accepted_tokens=count * steps_made,
            prompt_tokens=share * PROMPT_TOKENS * steps_made,
            first_tokens=share * steps_made,
            ttft_sum_seconds=share * steps_made * step,
            inter_token_sum_seconds=15.0 * count,
            inter_token_count=count * steps_made,
        )
        fit = learn(fit, regression_rows(window))
    found = law(fit)
    assert found is not None
    assert found.bends
    for count in (8.0, 16.0, 36.0):
        assert found.step_seconds(count) == pytest.approx(
            BENT.step_seconds(count) / 2.0, rel=SEEN_ERROR
        )
