"""Cost of tokens and hours."""

from servingslo.units import SECONDS_PER_HOUR, TOKENS_PER_MEGATOKEN


def cost_per_megatoken(cost_per_hour: float, tokens_per_second: float) -> float:
    """Return the cost of a million tokens, 10⁶·$/h / (3600·tokens/s).

    Source: "Serving and Systems Tradeoffs", cost of tokens.
    """
    return cost_per_hour / megatokens_in_hour(tokens_per_second)


def megatokens_in_hour(tokens_per_second: float) -> float:
    """Return million tokens per hour at this rate.

    Source: change of units.
    """
    return tokens_per_second * SECONDS_PER_HOUR / TOKENS_PER_MEGATOKEN
