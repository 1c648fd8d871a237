"""Cost, energy, the budget of a request's latency, and the choice of a degradation."""

from collections.abc import Sequence
from dataclasses import dataclass

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


def cost_per_request(cost_per_hour: float, requests_per_second: float) -> float:
    """Cost of one request on capacity that costs this much and serves this rate.

    Source: definition; "Serving and Systems Tradeoffs", cost of tokens, for requests.
    """
    return cost_per_hour / (requests_per_second * SECONDS_PER_HOUR)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBudget:
    """Parts of a request's latency, in seconds; tpot_seconds is per gap.

    Source: "Serving and Systems Tradeoffs", latency budget.
    """

    queue_seconds: float
    prefill_seconds: float
    tpot_seconds: float
    gap_count: float
    post_seconds: float = 0.0

    @property
    def ttft_seconds(self) -> float:
        """Time to first token: queue and prefill."""
        return self.queue_seconds + self.prefill_seconds

    @property
    def decode_seconds(self) -> float:
        """Time of all gaps between tokens."""
        return self.gap_count * self.tpot_seconds

    @property
    def total_seconds(self) -> float:
        """End-to-end latency."""
        return self.ttft_seconds + self.decode_seconds + self.post_seconds

    def shares(self) -> dict[str, float]:
        """Share of each part in the total; they sum to 1. Raises: InvalidInputError for nothing."""
        total = self.total_seconds
        if not total > 0.0:
            raise InvalidInputError("total_seconds", total, "above 0")
        return {
            "queue": self.queue_seconds / total,
            "prefill": self.prefill_seconds / total,
            "decode": self.decode_seconds / total,
            "post": self.post_seconds / total,
        }


def gap_count(output_tokens: float) -> float:
    """Gaps between the tokens of an output, O − 1, as engines count them.

    Source: vLLM, `request_time_per_output_token_seconds`: decode time over output tokens less 1.
    """
    return max(output_tokens - 1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradedMode:
    """A way to serve with less work: its latency in seconds and its quality, 0 to 1."""

    name: str
    latency_seconds: float
    quality: float


def best_degradation(
    modes: Sequence[DegradedMode], objective_seconds: float
) -> DegradedMode | None:
    """The mode of highest quality among those that meet the latency objective, None if none does.

    Of equal qualities the faster one. Source: "Serving and Systems Tradeoffs", degradation.
    """
    meeting = [mode for mode in modes if mode.latency_seconds <= objective_seconds]
    return max(meeting, key=lambda mode: (mode.quality, -mode.latency_seconds), default=None)
