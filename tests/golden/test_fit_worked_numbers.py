"""Worked figures of fitting a step law to what simulated engines export, 15 s apart.

Accounting, as `estimation/regression_rows` has it: time = a·steps + b·generated tokens + c·uncached
prompt tokens, from counters that vLLM exports. Stated: residual 0.5 to 1.6 %, a within 2 to 4 %, c
within 5 %; a regression of the mean inter-token latency on the sampled running gauge has 1 to 3 %
on steady load and 43 % on bursty load, where the gauge is stale.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from tests.unit.estimation_fleet import SimulatedFleet
from tests.validation.grid import conversation_lengths
from tests.validation.step_simulation import bursty_arrivals, poisson_arrivals

from servingslo.estimation.law.least_squares import EMPTY_INFORMATION, add_rows, solve_nonnegative
from servingslo.estimation.law.rows import regression_rows
from servingslo.estimation.windows.counters import Window
from servingslo_lab.sim.fleets.engine_kinds import engine_kind

# Tokens held for each running sequence of the conversation trace.
CONTEXT_TOKENS = 1227
# Windows before the load has settled.
SETTLED_WINDOWS = 4
SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class Scrapes:
    """The windows; and by window, the mean gap between tokens and what runs at its end."""

    windows: tuple[Window, ...]
    gap_seconds: np.ndarray
    running: np.ndarray


@cache
def scraped(
    kind: str, rate: float, burst: tuple[float, float] | None, engines: int, seed: int
) -> Scrapes:
    """Windows of one engine, or of a fleet with what its engines export summed up."""
    rng = np.random.default_rng(seed)
    prompts, outputs = conversation_lengths()
    count = int(1.3 * rate * engines * SECONDS)
    if burst is None:
        arrivals = poisson_arrivals(rate * engines, count, rng)
    else:
        arrivals = bursty_arrivals(rate * engines, count, *burst, rng)
    arrivals = arrivals[arrivals < SECONDS]
    drawn = rng.integers(0, len(prompts), len(arrivals))
    fleet = SimulatedFleet(kind=engine_kind(kind), replicas=engines)
    rows: list[list[float]] = []
    for sample in fleet.run(arrivals, prompts[drawn], outputs[drawn], until=SECONDS):
        seen = [pod.engines[0] for pod in sample.pods]
        rows.append(
            [
                sample.time_seconds - seen[0].counters_age_seconds,
                sum(engine.iteration_tokens.count for engine in seen),
                sum(engine.generation_tokens_total for engine in seen),
                sum(engine.prompt_tokens_total for engine in seen),
                sum(engine.inter_token_seconds.sum for engine in seen),
                sum(engine.inter_token_seconds.count for engine in seen),
                sum(engine.ttft_seconds.sum for engine in seen),
                sum(engine.ttft_seconds.count for engine in seen),
                sum(engine.running for engine in seen) / engines,
            ]
        )
    table = np.array(rows)
    grown = np.diff(table, axis=0)[SETTLED_WINDOWS:]
    windows = tuple(
        Window(
            pod="pod-0", engine="0", seconds=seconds, step_count=steps, generated_tokens=generated,
            prompt_tokens=prompt, inter_token_sum_seconds=gaps, inter_token_count=gap_count,
            ttft_sum_seconds=ttft, first_tokens=first_tokens,
        )
        for seconds, steps, generated, prompt, gaps, gap_count, ttft, first_tokens, _ in grown
    )  # fmt: skip
    return Scrapes(
        windows=windows,
        gap_seconds=grown[:, 4] / grown[:, 5],
        running=table[SETTLED_WINDOWS + 1 :, -1],
    )


def spread(values: np.ndarray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(values**2)))


def accounted(scrapes: Scrapes) -> tuple[np.ndarray, float]:
    """a, b and c by accounting of time, and the relative residual of a window."""
    rows = [row for window in scrapes.windows for row in regression_rows(window)]
    information = EMPTY_INFORMATION
    for row in rows:
        information = add_rows(information, [(row.x, 1.0)], 1.0)
    law = np.array(solve_nonnegative(information))
    return law, spread(np.array([row.x for row in rows]) @ law - 1.0)


def gauge_residual(scrapes: Scrapes) -> float:
    """Relative residual of mean inter-token latency = a' + b'·(running gauge)."""
    rows = np.stack((np.ones_like(scrapes.running), scrapes.running), axis=1)
    law = np.linalg.lstsq(rows, scrapes.gap_seconds, rcond=None)[0]
    return spread(rows @ law / scrapes.gap_seconds - 1.0)


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        pytest.param(10.0, None, id="steady"),
        pytest.param(14.0, None, id="near-the-knee"),
        pytest.param(10.0, (0.5, 8.0), id="bursty"),
    ],
)
def test_time_is_accounted_for(rate, burst):
    """On an engine that never idles: residual below 1.6 %, a within 4 %, c within 5 %.

    b stands for b + d·k̄: context per token hardly varies, and cannot be told apart.
    """
    truth = engine_kind("h100-8b").law
    law, residual = accounted(scraped("h100-8b", rate, burst, 1, 1))
    growth = truth.step_per_sequence_seconds + CONTEXT_TOKENS * truth.context_per_token_seconds
    assert 0.004 <= residual <= 0.009
    assert law[0] == pytest.approx(truth.step_fixed_seconds, rel=0.04)
    assert law[1] == pytest.approx(growth, rel=0.06)
    assert law[2] == pytest.approx(truth.prefill_per_token_seconds, rel=0.05)


def test_where_context_is_dear_prompts_take_up_a_part_of_it():
    """On the small card c is 9 to 13 % high, not 5: windows with long prompts attend to more.

    Context is eight times as dear there as on the large one; the residual is 1.7 to 2.1 %.
    """
    truth = engine_kind("l4-small").law
    fits = [accounted(scraped("l4-small", 2.4, None, 1, seed)) for seed in (1, 2, 3)]
    residuals = [residual for _, residual in fits]
    assert min(residuals) >= 0.016
    assert max(residuals) <= 0.022
    a, _, c = np.mean([law for law, _ in fits], axis=0)
    assert a == pytest.approx(0.96 * truth.step_fixed_seconds, rel=0.03)
    assert c == pytest.approx(1.105 * truth.prefill_per_token_seconds, rel=0.03)


@pytest.mark.parametrize("rate", [5.0, pytest.param(14.0, marks=pytest.mark.acceptance)])
def test_a_gauge_does_on_steady_load(rate):
    """Eight replicas, least loaded, Poisson: 1 to 3 %."""
    residual = gauge_residual(scraped("h100-8b", rate, None, 8, 1))
    assert 1 <= round(100 * residual) <= 3


def test_a_gauge_is_stale_in_bursts():
    """43 % where the rate swings by 0.9 for 8 to 12 s; accounting has 0.6 % with a swing of 0.5."""
    residuals = [
        gauge_residual(scraped("h100-8b", 10.0, (0.9, dwell), 1, seed))
        for dwell in (8.0, 12.0)
        for seed in (1, 2, 3)
    ]
    assert float(np.mean(residuals)) == pytest.approx(0.43, abs=0.03)
    milder = scraped("h100-8b", 10.0, (0.5, 8.0), 1, 1)
    assert gauge_residual(milder) > 20 * accounted(milder)[1]
