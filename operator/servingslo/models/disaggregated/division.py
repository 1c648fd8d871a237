"""Each pool's threshold of an objective that both pools keep together.

Both loads of a pair are scaled together until an objective binds. There the percentiles of each
pool alone are its thresholds: the pool's own sizing, which knows nothing of the other, then finds
its count of the pair again. It keeps one at the present rate, because its load is smaller there; it
finds no smaller count enough, because the objective would have been kept with it.
Source: percentiles rise with either load; `tests/unit/test_models_pair.py` sizes the pools again.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

from servingslo.models.disaggregated.pair import Load, Pair
from servingslo.models.disaggregated.pools import PoolModel
from servingslo.models.objectives import Objective

# Loads are scaled by this at least, so that a pool at the edge of its threshold is within it by
# more than the accuracy of the frontier.
LEAST_SCALE = 1.004
# Shares of the way from a count's rate to that of one replica fewer.
_BELOW_FEWER = 0.998
# Accuracy of the scale at which an objective binds, and most steps to it.
_CLOSE = 2e-3
_MOST_STEPS = 12
# A threshold is raised by this, at most so many times: more than percentiles ever fall.
_RAISE = 1.01
_MOST_RAISES = 8
# Part of an objective that a pool may use whose own percentile is 0.
_LEAST_PART = 0.01


class PairRole(StrEnum):
    """The two pools of a pair, by their names in the API."""

    PREFILL = "Prefill"
    DECODE = "Decode"


def divide(pair: Pair) -> Mapping[PairRole, Mapping[Objective, float]]:
    """Return the thresholds of each pool, in seconds, by objective.

    Each pool's `size()` with its thresholds, at its rate of the pair, finds its count of the pair.
    Objectives that no counts keep have none. Those of decode alone keep theirs.
    """
    model, at = pair.model, (pair.prefill, pair.decode, pair.rate_per_second)
    if pair.sufficient:
        scale, slack = _scale(pair)
        loads = _loads(pair, scale)
    else:
        slack, loads = {}, _short_loads(pair)
    prefill, decode = loads
    parts: dict[PairRole, dict[Objective, float]] = {
        PairRole.PREFILL: _parts(pair, model.prefill, prefill, slack),
        PairRole.DECODE: _parts(pair, model.decode, decode, slack),
    }
    if pair.sufficient:
        _settle(model.prefill, parts[PairRole.PREFILL], model.loads(*at)[0])
        _settle(model.decode, parts[PairRole.DECODE], model.loads(*at)[1])
        _keep_counts(pair, parts)
    parts[PairRole.DECODE] |= {one: one.threshold_seconds for one in pair.decode_alone}
    return parts


def _short_loads(pair: Pair) -> tuple[Load, Load]:
    """Return the loads whose percentiles divide objectives that the largest pair misses.

    A pool at its largest count: as loaded as the pair can be. The other pool: as loaded as it is,
    so that it stays at its count.
    """
    low = 0.5
    while low > _LEAST_PART and _worst(pair, low) > 1.0:
        low *= 0.5
    reached = _loads(pair, _binding_scale(pair, low, 1.0))
    present = _loads(pair, LEAST_SCALE)
    model = pair.model
    return (
        reached[0] if pair.prefill >= model.prefill.most else present[0],
        reached[1] if pair.decode >= model.decode.most else present[1],
    )


def _loads(pair: Pair, scale: float) -> tuple[Load, Load]:
    return pair.model.loads(pair.prefill, pair.decode, scale * pair.rate_per_second)


def _worst(pair: Pair, scale: float) -> float:
    """Return the greatest percentile over its threshold, of all joint objectives."""
    loads = _loads(pair, scale)
    return max((pair.model.seconds_ratio(one, *loads) for one in pair.joint), default=0.0)


def _ceiling_scale(pair: Pair) -> float:
    """Return the scale at which a pool reaches its ceiling of utilization."""
    model = pair.model
    pools = (model.prefill, model.decode)
    return min(
        pool.ceiling_per_second * count / max(rate, 1e-9)
        for pool, (count, rate) in zip(pools, _loads(pair, 1.0), strict=True)
    )


def _fewer_scale(pair: Pair) -> float:
    """Return the scale at which a replica is as loaded as with one fewer in its pool.

    Only of pools that the joint objectives need; an objective binds before.
    """
    counts = (pair.prefill, pair.prefill_least), (pair.decode, pair.decode_least)
    scales = [count / (count - 1) for count, least in counts if count > least]
    return min(scales, default=math.inf)


def _scale(pair: Pair) -> tuple[float, Mapping[Objective, float]]:
    """Return the scale, and what is left of each joint objective there: its threshold over it."""
    ceiling = _ceiling_scale(pair)
    fewer = 1.0 + _BELOW_FEWER * (_fewer_scale(pair) - 1.0)
    most = max(min(ceiling, fewer), 1.0)
    least = min(LEAST_SCALE, most)
    scale = _binding_scale(pair, least, most)
    loads = _loads(pair, scale)
    slack = {
        one: 1.0 / max(pair.model.seconds_ratio(one, *loads), _LEAST_PART) for one in pair.joint
    }
    if fewer < ceiling:
        # One replica fewer would miss an objective, so none is left of the one that is nearest.
        nearest = max(min(slack.values(), default=1.0), 1.0)
        slack = {one: ratio / nearest for one, ratio in slack.items()}
    return scale, {one: max(ratio, 1.0) for one, ratio in slack.items()}


def _binding_scale(pair: Pair, low: float, high: float) -> float:
    """Return the greatest scale up to high at which every joint objective holds; at least low."""
    if high <= low or _worst(pair, high) <= 1.0:
        return high
    before = _excess(pair, low)
    if before >= 0.0:
        return low
    after = _excess(pair, high)
    for _ in range(_MOST_STEPS):
        if high / low - 1.0 <= _CLOSE:
            break
        # False position, kept away from both ends so that neither stays for ever.
        share = min(max(before / (before - after), 0.1), 0.9)
        middle = low * math.exp(share * math.log(high / low))
        excess = _excess(pair, middle)
        if -_CLOSE <= excess <= 0.0:
            return middle
        if excess <= 0.0:
            low, before = middle, excess
        else:
            high, after = middle, excess
    return low


def _excess(pair: Pair, scale: float) -> float:
    """Return the logarithm of the worst percentile over its threshold, bounded."""
    return math.log(min(max(_worst(pair, scale), _LEAST_PART), 1.0 / _LEAST_PART))


def _parts(
    pair: Pair, pool: PoolModel, load: Load, slack: Mapping[Objective, float]
) -> dict[Objective, float]:
    """Return the percentiles of one pool at its load, with what is left of each objective."""
    alone = pair.model.loaded(pool, load)
    return {
        one: max(
            pool.seconds(alone, one) * slack.get(one, 1.0), _LEAST_PART * one.threshold_seconds
        )
        for one in pair.joint
    }


def _settle(pool: PoolModel, parts: dict[Objective, float], load: Load) -> None:
    """Raise thresholds, in place, until the pool's frontier carries its load at its count.

    Percentiles fall by a few percent here and there as load rises, so a frontier may end below.
    """
    for _ in range(_MOST_RAISES):
        carried = pool.carried_per_second(parts, load[0])
        short = [one for one, rate in carried.items() if rate < load[1]]
        if not short:
            return
        parts.update({one: parts[one] * _RAISE for one in short})


def _keep_counts(pair: Pair, parts: Mapping[PairRole, dict[Objective, float]]) -> None:
    """Lower thresholds, in place, that one replica fewer would keep although the pair needs it."""
    model = pair.model
    prefill, decode = _loads(pair, 1.0)
    fewer = prefill[0] - 1, prefill[1]
    if prefill[0] > pair.prefill_least:
        _keep_count(pair, model.prefill, parts[PairRole.PREFILL], (prefill, fewer), (fewer, decode))
    fewer = decode[0] - 1, decode[1]
    if decode[0] > pair.decode_least:
        _keep_count(pair, model.decode, parts[PairRole.DECODE], (decode, fewer), (prefill, fewer))


def _keep_count(
    pair: Pair,
    pool: PoolModel,
    parts: dict[Objective, float],
    loads: tuple[Load, Load],
    both: tuple[Load, Load],
) -> None:
    """Lower a threshold of one pool; loads: with its count and one fewer; both: pools with that."""
    missed = {one: pair.model.seconds_ratio(one, *both) for one in pair.joint}
    needing = [one for one, ratio in missed.items() if ratio > 1.0]
    now, fewer = loads
    carried = pool.carried_per_second({one: parts[one] for one in needing}, fewer[0])
    if not needing or min(carried.values()) < fewer[1]:
        return
    worst = max(needing, key=lambda one: missed[one])
    low, high = (pool.seconds(pair.model.loaded(pool, load), worst) for load in (now, fewer))
    if low < high:
        parts[worst] = math.sqrt(low * high) if low > 0.0 else 0.5 * high
