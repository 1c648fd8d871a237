"""Learn who shares the traffic among variants, from shares of arrivals and counts over time.

Traffic is tallied in blocks: some minutes during which the counts of serving pods do not change.
The end of each block is evidence for two questions, in log odds:

- Do shares belong to pods or to pools? With the shares of an earlier block, fixed weights predict
  the same shares at other counts, and weights of pods predict shares that follow the counts. At the
  same counts both predict the same, and nothing is concluded.
- Do all pods get the same? Even shares are compared with shares in proportion to what the pools
  carry, and with any other.

Counts are Poisson, so a share s of n requests is known to ±√(s(1 − s)/n). No rule holds to the
digit either, so each predicts shares with a tolerance: the law is a Dirichlet-multinomial, whose
concentration 1/(tolerance² + 1/n₀) has the sampling error of the earlier block's n₀ requests too.
A block weighs at most `LARGEST_LOOK`, however many requests it has, because what distorts it once
distorts all of it. So a conclusion takes two blocks, and as many against it to be given up: evenly
by pod is assumed until then, as the rule that promises least.
Source: A. Wald, "Sequential Tests of Statistical Hypotheses", 1945, with a bound on the evidence.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.stored_fields import (
    COUNT,
    NAME,
    Items,
    Keys,
    Many,
    Number,
    Numbers,
    One,
    Record,
)
from servingslo.policy.pools.inputs import MOST_POOLS
from servingslo.policy.pools.variants.split import Rates, Split, SplitRule, rates

# Connections and queues settle after a change of pods; as long as for routing within a pool.
SETTLED_SECONDS = 60.0
# A block ends after this long at the latest.
# Judgement; measured by the time until a rule is learned in the variants' backtest.
BLOCK_SECONDS = 300.0
# Requests of a block below which its shares replace no earlier ones: ±7 points at a half.
LEAST_REQUESTS = 50.0
# Relative tolerance of shares: of pods that get the same, and of what pools are said to carry.
# Judgement; measured by simulated gateways. Joining the fewest requests in flight sends two h100-8b
# next to six l4-small 47 % to 53 % of the requests, of which they could carry 65 %: at 95 % of the
# summed rates 68 % of the requests kept their objectives, at what the measured shares allow 99.6 %.
EVEN_TOLERANCE_RATIO = 0.05
CAPACITY_TOLERANCE_RATIO = 0.1
# Evidence in log odds: most of a block, most in total, and what concludes; the conclusion holds
# until the evidence is gone.
LARGEST_LOOK = 3.0
LARGEST_LOG_ODDS = 6.0
CONCLUDED_LOG_ODDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTally:
    """Requests that arrived at a pool while so many of its pods served."""

    pool: str
    serving: int
    requests: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitState:
    """What was learnt of the split; the default was never observed.

    by_pool, uneven: log odds that shares belong to pools and not to pods, and that pods get unequal
    numbers. belongs, evenness: the conclusions: 1 for pools or unequal, −1 for pods or equal, 0 for
    none. reference: the tallies of the last whole block. block: of the present one, since
    start_seconds; it counts from settled_seconds on.
    """

    by_pool: float = 0.0
    uneven: float = 0.0
    belongs: int = 0
    evenness: int = 0
    reference: tuple[PoolTally, ...] = ()
    block: tuple[PoolTally, ...] = ()
    start_seconds: float | None = None
    settled_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSample:
    """One tick: pods that serve, and requests that arrived since the last tick, by pool."""

    time_seconds: float
    serving: Mapping[str, int]
    requests: Mapping[str, float]


def learn_split(state: SplitState, sample: SplitSample, rate_of: Rates) -> SplitState:
    """The state after one more tick, at which all pools with pods were read.

    rate_of: what pools carry; asked for the serving counts, and only at the end of a block.
    """
    now = sample.time_seconds
    serving = {pool: count for pool, count in sample.serving.items() if count > 0}
    start = state.start_seconds
    if start is None or {tally.pool: tally.serving for tally in state.block} != serving:
        state = _end_block(state, rate_of)
        block = tuple(PoolTally(pool=pool, serving=n) for pool, n in sorted(serving.items()))
        return replace(state, block=block, start_seconds=now, settled_seconds=now + SETTLED_SECONDS)
    if state.settled_seconds is not None and now < state.settled_seconds:
        return state
    block = tuple(
        replace(tally, requests=tally.requests + max(sample.requests.get(tally.pool, 0.0), 0.0))
        for tally in state.block
    )
    state = replace(state, block=block)
    if now - start < BLOCK_SECONDS:
        return state
    state = _end_block(state, rate_of)
    return replace(
        state, block=tuple(replace(tally, requests=0.0) for tally in block), start_seconds=now
    )


def renamed_split(state: SplitState, names: Mapping[str, str], pools: int) -> SplitState:
    """The state under a changed spec, with a new block.

    names: present names by former ones, of pools that stayed. With other pools than those of the
    last whole block everything is learnt again: evidence about them promises nothing of new ones.
    """
    known = [tally.pool for tally in state.reference]
    if len(names) != pools or any(pool not in names for pool in known):
        return SplitState()
    reference = tuple(replace(tally, pool=names[tally.pool]) for tally in state.reference)
    return replace(
        state,
        reference=tuple(sorted(reference, key=lambda tally: tally.pool)),
        block=(),
        start_seconds=None,
        settled_seconds=None,
    )


def learned_split(state: SplitState) -> Split:
    """The split to plan with: evenly by pod until the evidence is for another."""
    requests = sum(tally.requests for tally in state.reference)
    observed = {tally.pool: tally.requests / requests for tally in state.reference if requests}
    if state.belongs > 0 and observed:
        return Split(rule=SplitRule.FIXED_WEIGHTS, source="learned", weights=observed)
    if state.belongs < 0 and state.evenness > 0 and observed:
        # Never the summed rates: shares that fit them at one pair of counts did not at others, and
        # the card that got more than its part missed its objective.
        weights = {t.pool: observed[t.pool] / t.serving for t in state.reference}
        return Split(rule=SplitRule.BY_LOAD, source="learned", weights=weights)
    learned = state.belongs < 0 and state.evenness < 0
    return Split(source="learned" if learned else "assumed")


def _end_block(state: SplitState, rate_of: Rates) -> SplitState:
    """The state with the evidence of the present block."""
    block, reference = state.block, state.reference
    requests = sum(tally.requests for tally in block)
    if len(block) < 2 or requests <= 0.0:
        return state
    by_pool, uneven = _look_at_pods(reference, block), _look_at_loads(block, rate_of)
    by_pool = _bounded(state.by_pool + by_pool)
    uneven = _bounded(state.uneven + uneven)
    enough = requests >= min(LEAST_REQUESTS, sum(t.requests for t in reference) or LEAST_REQUESTS)
    return replace(
        state,
        by_pool=by_pool,
        uneven=uneven,
        belongs=_concluded(by_pool, state.belongs),
        evenness=_concluded(uneven, state.evenness),
        reference=block if enough else reference,
    )


def _look_at_pods(reference: Sequence[PoolTally], block: Sequence[PoolTally]) -> float:
    """Log odds that the shares are those of the earlier block's pools, and not of its pods."""
    before = {tally.pool: tally for tally in reference}
    if before.keys() != {tally.pool for tally in block}:
        return 0.0
    # Half a request more: none seen of a pool is not proof that it gets none (Jeffreys).
    known = [before[tally.pool].requests + 0.5 for tally in block]
    pods = [
        one * tally.serving / before[tally.pool].serving
        for one, tally in zip(known, block, strict=True)
    ]
    counted = [tally.requests for tally in block]
    sure = 1.0 / (EVEN_TOLERANCE_RATIO**2 + 1.0 / sum(known))
    return _look(_log_likelihood(counted, known, sure) - _log_likelihood(counted, pods, sure))


def _look_at_loads(block: Sequence[PoolTally], rate_of: Rates) -> float:
    """Log odds that pods get unequal numbers: what the pools carry, or any."""
    counted = [tally.requests for tally in block]
    found = rates({tally.pool: tally.serving for tally in block}, rate_of)
    carried = [found[tally.pool] for tally in block]
    even = _log_likelihood(
        counted, [float(tally.serving) for tally in block], 1.0 / EVEN_TOLERANCE_RATIO**2
    )
    # Any shares are as likely: the flat Dirichlet law.
    free = _log_likelihood(counted, [1.0] * len(block), float(len(block)))
    by_load = -math.inf
    if min(carried) > 0.0:
        by_load = _log_likelihood(counted, carried, 1.0 / CAPACITY_TOLERANCE_RATIO**2)
    unequal = max(free, by_load) + math.log1p(math.exp(-abs(free - by_load))) - math.log(2.0)
    return _look(unequal - even)


def _log_likelihood(
    counted: Sequence[float], parts: Sequence[float], concentration: float
) -> float:
    """Log probability of counts by the Dirichlet-multinomial law, without the common factor.

    parts: expected shares up to a factor. concentration: sum of the law's parameters.
    """
    whole = sum(parts)
    found = math.lgamma(concentration) - math.lgamma(concentration + sum(counted))
    for count, part in zip(counted, parts, strict=True):
        weight = concentration * part / whole
        found += math.lgamma(weight + count) - math.lgamma(weight)
    return found


def _look(log_odds: float) -> float:
    return min(max(log_odds, -LARGEST_LOOK), LARGEST_LOOK)


def _bounded(log_odds: float) -> float:
    return min(max(log_odds, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)


def _concluded(log_odds: float, before: int) -> int:
    """The conclusion from the evidence: kept until the evidence for it is gone."""
    if abs(log_odds) >= CONCLUDED_LOG_ODDS:
        return 1 if log_odds > 0.0 else -1
    return before if before * log_odds > 0.0 else 0


def _plausible(state: SplitState) -> SplitState:
    """The state with the conclusions that its evidence allows."""
    return replace(
        state,
        belongs=_concluded(state.by_pool, state.belongs),
        evenness=_concluded(state.uneven, state.evenness),
    )


# Digits are few: no share is known to a thousandth.
_ODDS = (-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
TALLY = Record(
    PoolTally,
    Items(
        One("pool", NAME),
        One("serving", COUNT),
        Numbers(Number("requests", digits=6, least=0.0)),
        needed=True,
    ),
    finish=lambda tally: tally if tally.serving > 0 else None,
)
# Without the present block: a new one begins after a restart.
SPLIT = Record(
    SplitState,
    Keys(
        {
            "odds": Numbers(
                Number("by_pool", digits=4, bounds=_ODDS),
                Number("uneven", digits=4, bounds=_ODDS),
                Number("belongs", least=-1.0, most=1.0, whole=True),
                Number("evenness", least=-1.0, most=1.0, whole=True),
            ),
            "shares": Many("reference", TALLY, most=MOST_POOLS),
        }
    ),
    finish=_plausible,
)
