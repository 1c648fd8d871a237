"""Cost of tokens and hours."""

from servingslo.errors import InvalidInputError
from servingslo.units import SECONDS_PER_HOUR, TOKENS_PER_MEGATOKEN


def cost_per_megatoken(
    cost_per_hour: float, tokens_per_second: float, utilization: float = 1.0
) -> float:
    """Return the cost of a million tokens, 10⁶·$/h / (3600·tokens/s), at this utilization.

    tokens_per_second: at full utilization. utilization: in (0, 1].
    Source: "Serving and Systems Tradeoffs", cost of tokens.
    """
    if not 0 < utilization <= 1:
        raise InvalidInputError("utilization", utilization, "(0, 1]")
    megatokens_per_hour = megatokens_in_hour(tokens_per_second * utilization)
    return cost_per_hour / megatokens_per_hour


def megatokens_in_hour(tokens_per_second: float) -> float:
    """Return million tokens per hour at this rate.

    Source: change of units.
    """
    return tokens_per_second * SECONDS_PER_HOUR / TOKENS_PER_MEGATOKEN
