"""Time per output token while a batch is full, and the full batch that serves most in time.

An overloaded engine with a bound in flight always runs the same number of sequences: a request
starts when another ends. Starts then come with steps, not with time, so prefill causes no further
prefill, and the tail is far shorter than at an open load with as many running sequences.
Law: Poisson starts at n/(O − 1) a step, and the gamma law of `output_laws`.
Source: W. Feller, An Introduction to Probability Theory and Its Applications II (1971), chapter VI.
Assumes: a queue that never empties.
Fails: batches of a few sequences, up to 7 % late.
Shown by: tests/unit/test_models_full_batch.py.
"""

from collections.abc import Sequence

import numpy as np

from servingslo.models.engine.service_time import RequestDemand
from servingslo.models.fleet.load_laws import EngineLaws
from servingslo.models.numerics import TINY_SECONDS
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.models.tokens.output_laws import Moments, spread_points
from servingslo.models.tokens.prefill_interference import prefill_square_seconds2

# Batches evaluated in each round, between the neighbours of the previous round's best: a handful of
# rounds for any number of slots.
TRIALS = 16


def full_batch_moments(engine: EngineLaws, sequences: Sequence[int]) -> Moments:
    """Return moments with a constant number of running sequences, as sequences × output lengths.

    n sequences end r = n/(O − 1) requests a step and as many start, at random over steps: over g
    gaps a token takes s + r·c·I on average, s = a + β·n, with variance r·c²·E[I²]/g. A step has
    room for as much prefill as the token budget leaves.
    """
    gaps = engine.gaps.gaps
    demands = [engine.at_sequences(count) for count in sequences]
    means = [[_mean_gap(engine, count)] for count in sequences]
    started = np.array([[started_per_step(engine.demand, count)] for count in sequences])
    second = np.array([[prefill_square_seconds2(demand)] for demand in demands])
    deviation = np.maximum(np.sqrt(started * second / gaps), TINY_SECONDS)
    mean = np.broadcast_to(np.array(means), deviation.shape)
    return Moments(mean, deviation)


def best_full_batch(engine: EngineLaws, tpot_seconds: float, most_sequences: int) -> int:
    """Return the batch, 1 to most_sequences, that serves most tokens to requests in time.

    tpot_seconds: the time per output token that requests in time do not exceed. Above this batch
    the additional late requests outnumber the additional served ones; below it, capacity is unused.
    """
    span = range(1, max(most_sequences, 1) + 1)
    while True:
        trials = sorted({trial_of(span[0], span[-1], index) for index in range(TRIALS)})
        points = spread_points(full_batch_moments(engine, trials), engine.least_step_seconds)
        shares = np.sum((points <= tpot_seconds) * engine.gaps.spread_weights, axis=(1, 2))
        served = [
            count / _mean_gap(engine, count) * share
            for count, share in zip(trials, shares.tolist(), strict=True)
        ]
        best = max(range(len(trials)), key=lambda index: served[index])
        if len(trials) == len(span) or len(span) <= TRIALS:
            return trials[best]
        span = range(trials[max(best - 1, 0)], trials[min(best + 1, len(trials) - 1)] + 1)


def trial_of(first: int, last: int, index: int) -> int:
    """Return one of the batches to try between these, evenly spaced."""
    return first + (last - first) * index // (TRIALS - 1)


def full_batch_of(
    engine: EngineLaws,
    objectives: Sequence[Objective],
    most_sequences: int,
    calibration_ratio: float = 1.0,
) -> int | None:
    """Return the best full batch for these objectives; None without an inter-token one.

    In time means within the widest threshold: thresholds of lower percentiles are kept by the
    replica count. calibration_ratio: time per output token observed over predicted.
    """
    widest = max(
        (o.threshold_seconds for o in objectives if o.metric is LatencyMetric.TPOT), default=None
    )
    if widest is None:
        return None
    return best_full_batch(engine, widest / calibration_ratio, most_sequences)


def full_batch_now(
    demand: RequestDemand, sequences: int, prefill_tokens_per_token: float | None
) -> int:
    """Return the full batch at the present prefill per decoded token, at least 1.

    In it a token takes as long as in the given batch with usual lengths: a + n·(β + c·φ), φ the
    prompt tokens computed for each token decoded, usually I/(O − 1). None: as usual.
    """
    if prefill_tokens_per_token is None:
        return sequences
    per_token = demand.prefill_per_token_seconds
    usual = started_per_step(demand, 1) * demand.prefill_mean_seconds
    now = per_token * prefill_tokens_per_token
    growth = demand.step_growth_seconds
    if growth + now <= 0.0:
        return sequences
    return max(int(sequences * (growth + usual) / (growth + now)), 1)


def started_per_step(demand: RequestDemand, sequences: int) -> float:
    """Return the requests r that start in a step with this many running sequences."""
    return sequences / max(demand.output_mean_tokens - 1.0, 1.0)


def _mean_gap(engine: EngineLaws, sequences: int) -> float:
    return mean_gap_seconds(engine.at_sequences(sequences), engine.budget_tokens, sequences)


def mean_gap_seconds(demand: RequestDemand, budget_tokens: float, sequences: int) -> float:
    """Return the mean time per output token, s + r·c·I, with prefill limited to the step's room."""
    room = demand.prefill_per_token_seconds * max(budget_tokens - sequences, 0.0)
    prefill = min(started_per_step(demand, sequences) * demand.prefill_mean_seconds, room)
    return demand.step_fixed_seconds + demand.step_growth_seconds * sequences + prefill
