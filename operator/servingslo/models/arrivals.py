"""What arrivals at one pace meet at one load, in plain numbers.

Source: length-biased sampling of steps, W. Feller, An Introduction to Probability Theory and Its
Applications II (1971), chapter XI; docs/designs/0002-models.md, "What was added".
"""

from typing import NamedTuple

from servingslo.models.generations import Branching
from servingslo.models.holes import Meeting
from servingslo.models.levels import Shared
from servingslo.models.occupancy import Occupancy
from servingslo.models.paces import Pace
from servingslo.models.prompt_work import PromptWork, mean_steps
from servingslo.models.service_time import RequestDemand

# Further steps that move no percentile by more than 0.1 %.
_NEGLIGIBLE_FURTHER = 1e-3
# Share of the time that is prefill, below which how long that of others takes is nothing.
_NEGLIGIBLE_PREFILL = 1e-5
# Against a division by zero: far below any step.
_TINY_SECONDS = 1e-12


class Arrival(NamedTuple):
    """What arrivals at one pace meet at one load, and the range of the law that they are part of.

    meeting: how the arrivals of a replica meet its steps.
    """

    law_of_running: Occupancy
    pace: Pace
    level: int
    meeting: Meeting


class Flow(NamedTuple):
    """Numbers of `_characteristics` that are one for each pace.

    again: arrivals per second that a request finds beside itself. kappa: those that fill holes come
    with the density e^(−κt) of the age t of the step. filling: how many they are, for each second
    of a step without prefill. mean: seconds of prefill that a prompt causes. less_lag:
    −E[S²]/(2·E[S]) of it. filling_share: their share, times κ. base, first: as in the pace.
    """

    again: float
    kappa: float
    filling: float
    mean: float
    less_lag: float
    filling_share: float
    base: float
    first: float


def flow_of(demand: RequestDemand, prompts: PromptWork, arrival: Arrival) -> tuple[Flow, Branching]:
    """Numbers of a pace; and arrivals that come evenly, with those that fill holes on top."""
    pace, (even, again, growing, filled) = arrival.pace, arrival.meeting
    rate, mean = pace.rate_per_second, demand.prefill_mean_seconds
    kappa = rate * (1.0 + (arrival.law_of_running.pool_count - 1.0) * even)
    lag = prompts.lag_seconds * (1.0 + pace.further / max(mean, _TINY_SECONDS))
    filling = rate * (1.0 - even) / (1.0 - pace.prefill_ratio)
    flow = Flow(
        rate * even * again,
        kappa,
        pace.base_ratio * filling * filled,
        mean + pace.further,
        -lag,
        (1.0 - even) * kappa,
        pace.base_ratio,
        pace.first_ratio,
    )
    others = rate * (1.0 - growing) / (1.0 - pace.prefill_ratio)
    return flow, Branching(rate * growing, pace.prefill_ratio * growing, lag, others)


def stretch_of(demand: RequestDemand, pace: Pace) -> float:
    """By how much further steps lengthen the prefill of the prompts of others; 1 for nothing."""
    idle = pace.prefill_ratio < _NEGLIGIBLE_PREFILL
    if idle or pace.further <= _NEGLIGIBLE_FURTHER * demand.prefill_mean_seconds:
        return 1.0
    return 1.0 + pace.further / demand.prefill_mean_seconds


def without_prompts(arrival: Arrival) -> tuple[float, float, float]:
    """Step of a pace, what it is begun with in cycles with prompts, and the mass of the others."""
    step = arrival.pace.mean_step
    without = arrival.pace.empty_ratio / (step * cycle_steps(arrival))
    return step, step * arrival.pace.first_ratio, without


def steps_of(demand: RequestDemand, arrival: Arrival) -> tuple[float, float, float]:
    """Shortest step of a pace, what a node more adds, and the length of a cycle in steps."""
    running, pace = arrival.law_of_running, arrival.pace
    growth = demand.step_growth_seconds * pace.spread
    first = pace.mean_step + growth * (running.lowest - running.mean)
    return first, growth * running.spacing, cycle_steps(arrival)


def cycle_steps(arrival: Arrival) -> float:
    """Length of a cycle in steps, for each arrival that comes evenly."""
    cycles = arrival.pace.base_ratio / (1.0 - arrival.pace.prefill_ratio)
    below = max(arrival.law_of_running.below_cap, _TINY_SECONDS)
    return cycles * below / arrival.meeting.even_ratio


def pool_met(prompts: PromptWork, arrival: Arrival) -> Shared:
    """The replicas that share the arrivals, with the steps of prompts that have the whole room."""
    running, pace = arrival.law_of_running, arrival.pace
    return Shared(
        running.pool_count,
        pace.rate_per_second,
        1.0 + running.pool_count * running.bursts.relaxed_excess,
        running.mean,
        running.variance,
        pace.mean_step,
        mean_steps(prompts, pace.room_tokens),
    )
