"""Cost and energy of tokens and hours."""

from servingslo.errors import InvalidInputError
from servingslo.units import SECONDS_PER_HOUR, TOKENS_PER_MEGATOKEN

# Source: the International System of Units, and 3,600 seconds in an hour.
_WATTS_PER_KILOWATT = 1000.0
_JOULES_PER_KILOWATT_HOUR = 3.6e6


def cost_per_megatoken(
    cost_per_hour: float, tokens_per_second: float, utilization: float = 1.0
) -> float:
    """Cost of a million tokens, 10⁶·$/h / (3600·tokens/s), at this share of the full rate.

    tokens_per_second: at full utilization. utilization: in (0, 1].
    Source: "Serving and Systems Tradeoffs", cost of tokens.
    """
    if not 0 < utilization <= 1:
        raise InvalidInputError("utilization", utilization, "(0, 1]")
    megatokens_per_hour = megatokens_in_hour(tokens_per_second * utilization)
    return cost_per_hour / megatokens_per_hour


def megatokens_in_hour(tokens_per_second: float) -> float:
    """Million tokens in an hour at this rate.

    Source: change of units.
    """
    return tokens_per_second * SECONDS_PER_HOUR / TOKENS_PER_MEGATOKEN


def energy_per_token_joules(power_watts: float, tokens_per_second: float) -> float:
    """Energy of one token, W/(tokens/s), in joules.

    Source: definition: power over throughput.
    """
    return power_watts / tokens_per_second


def energy_cost_per_megatoken(
    power_watts: float, tokens_per_second: float, price_per_kilowatt_hour: float
) -> float:
    """Electricity cost of a million tokens.

    Source: definition; a kilowatt-hour is 3.6 MJ.
    """
    joules = energy_per_token_joules(power_watts, tokens_per_second) * TOKENS_PER_MEGATOKEN
    return joules / _JOULES_PER_KILOWATT_HOUR * price_per_kilowatt_hour


def energy_cost_per_hour(power_watts: float, price_per_kilowatt_hour: float) -> float:
    """Electricity cost of an hour at this power.

    Source: definition.
    """
    return power_watts / _WATTS_PER_KILOWATT * price_per_kilowatt_hour
