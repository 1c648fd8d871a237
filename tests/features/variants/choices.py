"""Pools of unequal cards, and all their compositions."""

import itertools

from servingslo.features.variants.composition import Choice, Variant


def linear(rate):
    """Each replica carries as much."""
    return lambda count: rate * count


def pooling(rate, loss_ratio):
    """A replica carries more in a larger pool."""
    return lambda count: rate * count * (1.0 - loss_ratio / count**0.5)


def h100(**changes):
    """A fast, dear card: 10/s for 2.5 an hour."""
    settings = {"name": "h100", "price_hourly": 2.5, "rate_of": linear(10.0), "maximum": 12}
    return Variant(**{**settings, "cold_start_seconds": 300.0, **changes})


def l4(**changes):
    """A slow, cheap card: 3/s for 0.8 an hour."""
    settings = {"name": "l4", "price_hourly": 0.8, "rate_of": linear(3.0), "maximum": 40}
    return Variant(**{**settings, "cold_start_seconds": 60.0, **changes})


def choice(*variants, gpus_max=None):
    """These pools, or both cards."""
    return Choice(variants=variants or (h100(), l4()), gpus_max=gpus_max)


def every(choice):
    """All counts within bounds and GPUs."""
    names = [one.name for one in choice.variants]
    ranges = [range(one.minimum, one.maximum + 1) for one in choice.variants]
    found = (dict(zip(names, counts, strict=True)) for counts in itertools.product(*ranges))
    return [counts for counts in found if choice.within_gpus(counts)]


def cost(choice, counts):
    """Price of an hour, with the cold starts of replicas that are not present."""
    return sum(one.cost(counts[one.name]) for one in choice.variants)
