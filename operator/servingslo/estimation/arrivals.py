"""How many requests arrive: from balance of flow, because no engine counts arrivals.

Arrivals = increase of the first-token count + change in requests without a first token (waiting;
those in prefill are unseen and bounded by one step's worth) + rejections. Completions plus change
in system is the cross-check, and the substitute where first tokens are not counted. A gateway that
counts requests wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.counters import SHORTEST_WINDOW_SECONDS, Window, increase
from servingslo.estimation.sample import GatewaySample

# Memory of the dispersion, in windows (20 minutes at 15 s), and the Poisson windows it starts from.
DISPERSION_MEMORY_WINDOWS = 80.0
DISPERSION_PRIOR_WINDOWS = 20.0
# Traffic smoother than Poisson is not believed: the estimate is noisy and the error unsafe.
DISPERSION_BOUNDS = (1.0, 10.0)
# One second difference beyond this many variances is a change of level, not burstiness.
LARGEST_STANDARDIZED_SQUARE = 16.0
# Second difference of three equal-variance terms (1, −2, 1) has six times their variance.
SECOND_DIFFERENCE_VARIANCE = 6.0
# A retry client gives up: more than this many retries per rejection is not believed.
MOST_RETRIES_PER_REJECTION = 3.0
RETRY_MEMORY_WINDOWS = 40.0
# Rejections below this share of arrivals are not worth correcting for, in requests per second.
LEAST_REJECTION_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlow:
    """The last measured flow of one engine, per second, over `seconds`."""

    pod: str
    engine: str
    arrivals_per_second: float
    rejections_per_second: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryState:
    """What is known of retries: offered load before, and how it fell when rejections fell.

    squares, products: Σ (fall of rejections)² and Σ fall of rejections x fall of offered load.
    """

    offered_per_second: float | None = None
    rejected_per_second: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    @property
    def retries_per_rejection(self) -> float:
        """Requests that one rejection brings back, 0 while unknown."""
        if self.squares <= 0:
            return 0.0
        return min(max(self.products / self.squares, 0.0), MOST_RETRIES_PER_REJECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalState:
    """Flows by engine, the gateway's last counters, recent rates, dispersion and retries."""

    flows: tuple[EngineFlow, ...] = ()
    gateway: GatewaySample | None = None
    gateway_time_seconds: float | None = None
    recent_rates_per_second: tuple[float, ...] = ()
    dispersion_sum: float = 0.0
    dispersion_weight: float = 0.0
    retries: RetryState = RetryState()

    @property
    def dispersion(self) -> float:
        """Index of dispersion of arrival counts at the scrape scale; 1 for Poisson."""
        total = self.dispersion_sum + DISPERSION_PRIOR_WINDOWS
        low, high = DISPERSION_BOUNDS
        return min(max(total / (self.dispersion_weight + DISPERSION_PRIOR_WINDOWS), low), high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalMeasurement:
    """Arrivals over the last window, per second; unique_per_second has the echo of retries removed.

    seconds: length of the window. is_new: something was measured at this tick.
    """

    offered_per_second: float | None = None
    unique_per_second: float | None = None
    rejected_per_second: float = 0.0
    seconds: float = 0.0
    is_new: bool = False


def arrivals_of(window: Window) -> float | None:
    """Requests that arrived at an engine in a window, None where it exports neither balance.

    May be slightly negative: preempted requests count as waiting again. Sums over windows are
    exact, so only the sum is cut at zero.
    """
    rejected = window.rejected or 0.0
    if window.first_tokens is not None:
        return window.first_tokens + _change(window.waiting_after, window.waiting_before) + rejected
    if window.finished is None:
        return None
    in_system = _change(window.running_after, window.running_before) + _change(
        window.waiting_after, window.waiting_before
    )
    return window.finished + in_system + rejected


def measure(
    state: ArrivalState,
    windows: Sequence[Window],
    engines: frozenset[tuple[str, str]],
    coverage_ratio: float,
    gateway: tuple[GatewaySample, float] | None,
) -> tuple[ArrivalState, ArrivalMeasurement]:
    """Arrivals now, and the state with this tick's windows in it.

    engines: present in this sample; flows of others are dropped with their pods. coverage_ratio:
    share of the ready pods whose metrics are fresh; what the others receive is unseen, and taken to
    be as much. gateway: its fresh sample and when that was taken.
    """
    flows = _flows(state.flows, windows, engines)
    state = replace(state, flows=flows)
    seconds = max((w.seconds for w in windows), default=0.0)
    offered: float | None = None
    rejected = 0.0
    is_new = bool(windows)
    if flows and coverage_ratio > 0:
        offered = max(sum(f.arrivals_per_second for f in flows), 0.0) / coverage_ratio
        rejected = sum(f.rejections_per_second for f in flows) / coverage_ratio
    state, counted = _through_gateway(state, gateway)
    if counted is not None:
        offered, rejected, seconds, is_new = *counted, True
    if offered is None or not is_new:
        return state, ArrivalMeasurement(offered_per_second=offered, unique_per_second=offered)
    retries = _learn_retries(state.retries, offered, rejected)
    unique = _without_echo(state.retries, offered, rejected)
    state = replace(state, retries=retries)
    return _with_dispersion(state, unique, seconds), ArrivalMeasurement(
        offered_per_second=offered,
        unique_per_second=unique,
        rejected_per_second=rejected,
        seconds=seconds,
        is_new=True,
    )


def _change(after: float | None, before: float | None) -> float:
    return 0.0 if after is None or before is None else after - before


def _flows(
    old: tuple[EngineFlow, ...],
    windows: Sequence[Window],
    engines: frozenset[tuple[str, str]],
) -> tuple[EngineFlow, ...]:
    flows = {(f.pod, f.engine): f for f in old if (f.pod, f.engine) in engines}
    for window in windows:
        count = arrivals_of(window)
        if count is not None:
            flows[window.pod, window.engine] = EngineFlow(
                pod=window.pod,
                engine=window.engine,
                arrivals_per_second=count / window.seconds,
                rejections_per_second=(window.rejected or 0.0) / window.seconds,
                seconds=window.seconds,
            )
    return tuple(flows.values())


def _through_gateway(
    state: ArrivalState, gateway: tuple[GatewaySample, float] | None
) -> tuple[ArrivalState, tuple[float, float, float] | None]:
    """(offered, rejected, seconds) as the gateway counted them, None without a new window."""
    if gateway is None or gateway[0].requests_total is None:
        return state, None
    sample, time_seconds = gateway
    before, before_time = state.gateway, state.gateway_time_seconds
    if before_time is not None and time_seconds - before_time < SHORTEST_WINDOW_SECONDS:
        return state, None
    state = replace(state, gateway=sample, gateway_time_seconds=time_seconds)
    if before is None or before_time is None:
        return state, None
    requests = increase(sample.requests_total, before.requests_total)
    if requests is None:
        return state, None
    seconds = time_seconds - before_time
    rejected = increase(sample.rejected_total, before.rejected_total) or 0.0
    return state, (requests / seconds, rejected / seconds, seconds)


def _learn_retries(state: RetryState, offered: float, rejected: float) -> RetryState:
    """Retries show when rejections fall, because capacity came, and offered load falls with them.

    While both rise the cause cannot be told: demand above the bound raises rejections one for one
    just as retries raise demand. So only falls are learnt from.
    """
    memory = 1.0 - 1.0 / RETRY_MEMORY_WINDOWS
    squares, products = state.squares * memory, state.products * memory
    before = state.offered_per_second
    if before is not None and state.rejected_per_second > LEAST_REJECTION_RATIO * before:
        fall = state.rejected_per_second - rejected
        admitted_rose = offered - rejected >= before - state.rejected_per_second
        if fall > 0 and admitted_rose:
            squares += fall * fall
            products += fall * (before - offered)
    return RetryState(
        offered_per_second=offered, rejected_per_second=rejected, squares=squares, products=products
    )


def _without_echo(state: RetryState, offered: float, rejected: float) -> float:
    """Offered load less the retries of the rejections of the window before."""
    if rejected <= 0 or state.offered_per_second is None:
        return offered
    echo = min(state.retries_per_rejection * state.rejected_per_second, rejected)
    return max(offered - echo, 0.0)


def _with_dispersion(state: ArrivalState, rate: float, seconds: float) -> ArrivalState:
    """The state with one more term of the dispersion, from second differences of counts.

    Second differences cancel level and slope, so a ramp is not taken for burstiness.
    """
    recent = (*state.recent_rates_per_second, rate)[-3:]
    state = replace(state, recent_rates_per_second=recent)
    mean = sum(recent) / len(recent)
    if len(recent) < 3 or mean * seconds < 1.0:
        return state
    curvature = recent[0] - 2.0 * recent[1] + recent[2]
    term = seconds * curvature * curvature / (SECOND_DIFFERENCE_VARIANCE * mean)
    memory = 1.0 - 1.0 / DISPERSION_MEMORY_WINDOWS
    return replace(
        state,
        dispersion_sum=state.dispersion_sum * memory
        + min(term, LARGEST_STANDARDIZED_SQUARE * state.dispersion),
        dispersion_weight=state.dispersion_weight * memory + 1.0,
    )
