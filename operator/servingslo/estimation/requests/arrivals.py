"""Estimate arrivals from balance of flow, because no engine counts arrivals.

Arrivals = increase of the first-token count + change in requests without a first token (waiting;
those in prefill are invisible, at most one step's worth) + rejections. Completions plus change in
system is the cross-check, and the substitute if first tokens are not counted. A gateway that counts
requests when they arrive has precedence, unless it passed on fewer than the engines received: then
some requests bypass it. In that case its refusals are added to the engines' count. The same holds
for a gateway that counts requests when they end. Refused requests are demand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servingslo.copying import replace
from servingslo.estimation.gateway.classes import (
    Sheddable,
    begins,
    last_sums,
    measure_classes,
    sheddable_part,
)
from servingslo.estimation.gateway.comparison import NOT_COMPARED, Comparison, Told, far_below
from servingslo.estimation.gateway.counts import GatewayFlow, InstanceFlow
from servingslo.estimation.gateway.fallback import FallbackUse, FallbackWindow
from servingslo.estimation.gateway.ledger import RequestLedger, ledger_of
from servingslo.estimation.gateway.use import GatewayUse
from servingslo.estimation.requests.endings import endings_of
from servingslo.estimation.requests.engine_flows import (
    UNSETTLED_ERROR_RATIO,
    EngineFlow,
    counted_flows,
    longest_seconds,
    sum_of,
)
from servingslo.estimation.requests.retries import (
    UNTOLD,
    RetryState,
    first_attempts,
    retry_error_ratio,
)
from servingslo.estimation.sample import GatewaySample
from servingslo.estimation.windows.balance import arrivals_of
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.endings import Endings
from servingslo.estimation.windows.freshness import Freshness
from servingslo.estimation.windows.plausible import can_have_passed
from servingslo.reasons import Reason
from servingslo.records import record
from servingslo.runtimes.gateways import CountedWhen

# Memory of the dispersion, in windows (20 minutes at 15 s), and the weight of its Poisson prior.
# Judgement; measured by `make guard` with half and twice the memory on its bursty rows.
DISPERSION_MEMORY_WINDOWS = 80.0
DISPERSION_PRIOR_WINDOWS = 20.0
# A dispersion below Poisson is not used: the estimate is noisy and the error would be unsafe.
DISPERSION_BOUNDS = (1.0, 10.0)
# A second difference beyond this many variances may be a change of level, not burstiness. It is cut
# here, so that one step hardly matters and lasting burstiness is still learnt.
LARGEST_STANDARDIZED_SQUARE = 6.0
# Second difference of three equal-variance terms (1, −2, 1) has six times their variance.
SECOND_DIFFERENCE_VARIANCE = 6.0
# Error of the sum of flows in a steady fleet.
COUNTING_ERROR_RATIO = 0.02
UNSETTLED_KEEP_RATIO = 0.5
# At the first ticks engines report a window one after another, as each is scraped again. If fewer
# than this share have reported, nothing is concluded for the others.
LEAST_TOLD_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalState:
    """Flows by engine, by gateway instance and to the fallback, recent rates, dispersion, retries.

    unsettled_ratio: share of the engines that started or vanished recently. all_told: whether every
    engine has reported a window once; engines that appear later are new. classes: flows of each
    class at the gateway. sheddable: what was last known of the classes that order no replicas.
    classes_begin: their counting has only begun, so that demand is not known yet. last_classes: the
    last sum of each class, and when it was scraped.
    """

    flows: tuple[EngineFlow, ...] = ()
    gateway: tuple[InstanceFlow, ...] = ()
    fallback: tuple[FallbackWindow, ...] = ()
    comparison: Comparison = NOT_COMPARED
    recent_rates_per_second: tuple[float, ...] = ()
    dispersion_sum: float = 0.0
    dispersion_weight: float = 0.0
    retries: RetryState = UNTOLD
    unsettled_ratio: float = 0.0
    all_told: bool = False
    classes: Mapping[str, tuple[InstanceFlow, ...]] = field(default_factory=dict)
    sheddable: Sheddable | None = None
    classes_begin: bool = False
    last_classes: Mapping[str, tuple[float, GatewayFlow]] = field(default_factory=dict)

    @property
    def dispersion(self) -> float:
        """Index of dispersion of arrival counts at the scrape scale; 1 for Poisson."""
        total = self.dispersion_sum + DISPERSION_PRIOR_WINDOWS
        low, high = DISPERSION_BOUNDS
        return min(max(total / (self.dispersion_weight + DISPERSION_PRIOR_WINDOWS), low), high)


@record(frozen=True, slots=True, kw_only=True)
class ArrivalMeasurement:
    """Arrivals over the last window, per second; first_attempts_per_second: without retries.

    seconds: length of the window. is_new: something was measured at this tick. error_ratio: error
    beyond counting noise. Windows of several engines are not in step, flows move when engines start
    or vanish, and retry traffic is not well known. gateway: None if none is read. retries_known:
    whether retries per refusal were measured; else they are assumed. discarded_per_second: a rate
    that was counted but not used because new pods served unscraped; else None. ledger: where the
    requests went; None while no rate is known. fallback: what was counted of it, if there is one.
    Classes that order no replicas are in none of these: sheddable_per_second is what was admitted
    of them.
    """

    offered_per_second: float | None = None
    first_attempts_per_second: float | None = None
    rejected_per_second: float = 0.0
    seconds: float = 0.0
    is_new: bool = False
    error_ratio: float = COUNTING_ERROR_RATIO
    gateway: GatewayUse | None = None
    retries_known: bool = False
    discarded_per_second: float | None = None
    ledger: RequestLedger | None = None
    sheddable_per_second: float = 0.0
    fallback: FallbackUse | None = None


@record(frozen=True, slots=True, kw_only=True)
class _Counted:
    """Arrivals as counted by one side; offered_per_second is None if that side does not know it.

    requests: counted in this tick's windows. refusals: who counts refusals, or that no one does.
    """

    offered_per_second: float | None
    rejected_per_second: float
    seconds: float
    is_new: bool
    error_ratio: float
    refusals: Reason
    queueing_per_second: float = 0.0
    requests: float = 0.0
    degraded_per_second: float = 0.0


def measure(
    state: ArrivalState,
    windows: Sequence[Window],
    fresh: Freshness,
    gateway: GatewayFlow | None,
    fallback: FallbackUse | None = None,
) -> tuple[ArrivalState, ArrivalMeasurement]:
    """Return arrivals now, and the state with this tick's windows in it.

    fresh: the engines of this sample. Flows of engines that are gone are dropped, and pods without
    fresh metrics are assumed to receive the same flow. gateway: its count, None if none is read.
    fallback: the part of it that went there.
    """
    flows, windows, passed_over = counted_flows(state.flows, windows, fresh)
    changed = sum(w.from_zero for w in windows) + sum(f.vanished for f in flows)
    unsettled = max(
        min(changed / max(len(flows), 1), 1.0), UNSETTLED_KEEP_RATIO * state.unsettled_ratio
    )
    told = 1.0 if state.all_told else _reporting_ratio(flows, fresh)
    all_told = state.all_told or (bool(flows) and told == 1.0)
    state = replace(state, flows=flows, unsettled_ratio=unsettled, all_told=all_told)
    coverage = fresh.coverage_ratio * told
    known = flows and coverage > 0 and told >= LEAST_TOLD_RATIO
    by_engines = _Counted(
        offered_per_second=sum_of(flows) / coverage if known else None,
        rejected_per_second=sum(f.rejections_per_second for f in flows) / coverage
        if known
        else 0.0,
        seconds=longest_seconds(windows),
        is_new=bool(windows),
        error_ratio=COUNTING_ERROR_RATIO + UNSETTLED_ERROR_RATIO * unsettled,
        refusals=Reason.ENGINES_COUNT_REFUSALS
        if any(flow.counts_refusals for flow in flows)
        else Reason.REFUSALS_UNSEEN,
        requests=sum(arrivals_of(w) or 0.0 for w in windows) / coverage if known else 0.0,
    )
    state, counted, use = _with_gateway(state, by_engines, gateway, fallback)
    refused = by_engines.rejected_per_second
    if fallback is not None:
        refused += fallback.refused_per_second - fallback.refused_at_gateway_per_second
    endings = endings_of([f.endings for f in flows], gateway, refused, state.sheddable)
    counted, use, shed = _without_sheddable(counted, use, state.sheddable)
    if state.classes_begin:
        counted = replace(counted, offered_per_second=None)
    offered, rejected = counted.offered_per_second, counted.rejected_per_second
    if offered is None or not counted.is_new:
        return state, ArrivalMeasurement(
            offered_per_second=offered,
            first_attempts_per_second=offered,
            gateway=use,
            discarded_per_second=passed_over,
            ledger=_ledger(counted, offered, endings),
            sheddable_per_second=shed,
            fallback=fallback,
        )
    retries, first = first_attempts(state.retries, offered, rejected)
    state = replace(state, retries=retries)
    return _with_dispersion(state, first, counted.seconds), ArrivalMeasurement(
        offered_per_second=offered,
        first_attempts_per_second=first,
        rejected_per_second=rejected,
        seconds=counted.seconds,
        is_new=True,
        error_ratio=counted.error_ratio + retry_error_ratio(offered, first),
        gateway=use,
        retries_known=retries.known,
        ledger=_ledger(counted, first, endings),
        sheddable_per_second=shed,
        fallback=fallback,
    )


def count_classes(
    state: ArrivalState,
    samples: Mapping[str, GatewaySample],
    sheddable: frozenset[str],
    now_seconds: float,
    stale_after_seconds: float,
) -> tuple[ArrivalState, Mapping[str, GatewayFlow]]:
    """Return the state with each class's flows at the gateway, and their sums.

    sheddable: the classes that order no replicas. A class that a reading lacks keeps its last sum
    until that is too old; so long the last known part of these classes is kept as well.
    """
    flows, classes = state.classes, dict[str, GatewayFlow]()
    if samples:
        flows, classes = measure_classes(flows, samples, now_seconds, stale_after_seconds)
    last = last_sums(state.last_classes, flows, classes, now_seconds, stale_after_seconds)
    usable = last.keys() >= state.last_classes.keys() and bool(samples or sheddable)
    shed = sheddable_part(classes, sheddable) or (state.sheddable if usable else None)
    begin = shed is None and bool(sheddable) and begins(classes)
    state = replace(state, classes=flows, sheddable=shed, classes_begin=begin, last_classes=last)
    return state, classes | {name: flow for name, (_, flow) in last.items()}


def _without_sheddable(
    counted: _Counted, use: GatewayUse | None, shed: Sheddable | None
) -> tuple[_Counted, GatewayUse | None, float]:
    """The part of the classes that order replicas, and the others' admitted rate.

    If the gateway is silent, the part is the last known one.
    """
    offered = counted.offered_per_second
    if shed is None or offered is None:
        return counted, use, 0.0
    ordering = 1.0 - shed.offered_ratio
    rejected = max(counted.rejected_per_second - shed.rejected_per_second, 0.0)
    if use is not None:
        told, own = use.gateway_per_second, use.engines_per_second
        use = replace(
            use,
            gateway_per_second=None if told is None else told * ordering,
            engines_per_second=None if own is None else own * ordering,
            refused_per_second=max(use.refused_per_second - shed.rejected_per_second, 0.0),
        )
    part = replace(
        counted,
        offered_per_second=offered * ordering,
        rejected_per_second=rejected,
        queueing_per_second=counted.queueing_per_second * ordering,
    )
    return part, use, min(shed.admitted_per_second, offered * shed.offered_ratio)


def _ledger(
    counted: _Counted, first_per_second: float | None, endings: Endings
) -> RequestLedger | None:
    offered = counted.offered_per_second
    if offered is None or first_per_second is None:
        return None
    ledger = ledger_of(
        offered_per_second=offered,
        refused_per_second=counted.rejected_per_second,
        queueing_per_second=counted.queueing_per_second,
        first_per_second=first_per_second,
        reason=counted.refusals,
        degraded_per_second=counted.degraded_per_second,
    )
    return replace(ledger, failed_per_second=endings.failed, aborted_per_second=endings.aborted)


def _with_gateway(
    state: ArrivalState,
    engines: _Counted,
    gateway: GatewayFlow | None,
    fallback: FallbackUse | None,
) -> tuple[ArrivalState, _Counted, GatewayUse | None]:
    """Which count is used, and why. A silent gateway never means that no requests arrived."""
    if gateway is None:
        return state, engines, None
    rate, own = gateway.requests_per_second, engines.offered_per_second
    use = GatewayUse(
        reason=gateway.problem or Reason.GATEWAY_SILENT,
        gateway_per_second=rate,
        engines_per_second=own,
        refused_per_second=gateway.rejected_per_second,
    )
    if rate is None:
        return state, engines, use
    # A request refused by an engine has passed the gateway: it is among its requests, not its
    # refusals.
    rejected = gateway.rejected_per_second + engines.rejected_per_second
    if gateway.counted is CountedWhen.ENDED:
        return state, *_refusals_added(engines, gateway, use, Reason.GATEWAY_REFUSALS_ADDED)
    passed_on = rate - gateway.rejected_per_second - gateway.queueing_per_second
    degraded = 0.0
    if fallback is not None:
        passed_on -= fallback.passed_on_per_second
        degraded = fallback.served_per_second
        rejected += fallback.passed_on_per_second - degraded
    if own is not None and not can_have_passed(passed_on, own, gateway.seconds):
        return state, engines, replace(use, reason=Reason.GATEWAY_IMPLAUSIBLE)
    comparison = state.comparison.add_windows(
        Told(max(passed_on, 0.0) * gateway.seconds, gateway.seconds) if gateway.is_new else None,
        Told(engines.requests, engines.seconds) if engines.is_new else None,
    )
    state = replace(state, comparison=comparison)
    below = own is not None and far_below(
        passed_on, own, gateway.seconds, state.dispersion, engines.error_ratio
    )
    if own is not None and (state.comparison.undercounts or below):
        engines, use = _refusals_added(engines, gateway, use, Reason.GATEWAY_UNDERCOUNTS)
        return state, _fallback_added(engines, fallback), use
    counted = _Counted(
        offered_per_second=rate,
        rejected_per_second=rejected,
        seconds=gateway.seconds,
        is_new=gateway.is_new,
        error_ratio=COUNTING_ERROR_RATIO,
        refusals=Reason.GATEWAY_COUNTS,
        queueing_per_second=gateway.queueing_per_second,
        degraded_per_second=degraded,
    )
    return state, counted, replace(use, reason=Reason.GATEWAY_COUNTS)


def _refusals_added(
    engines: _Counted, gateway: GatewayFlow, use: GatewayUse, reason: Reason
) -> tuple[_Counted, GatewayUse]:
    """Add the gateway's refusals, which no engine ever saw, to the engines' count."""
    own, refused = engines.offered_per_second, gateway.rejected_per_second
    added = replace(
        engines,
        offered_per_second=None if own is None else own + refused,
        rejected_per_second=engines.rejected_per_second + refused,
        refusals=reason,
    )
    return added, replace(use, reason=reason)


def _fallback_added(engines: _Counted, fallback: FallbackUse | None) -> _Counted:
    """Add the requests that the gateway passed on to a fallback, which no engine here ever saw."""
    own = engines.offered_per_second
    if fallback is None or own is None:
        return engines
    degraded = fallback.served_per_second
    return replace(
        engines,
        offered_per_second=own + fallback.passed_on_per_second,
        rejected_per_second=engines.rejected_per_second + fallback.passed_on_per_second - degraded,
        degraded_per_second=degraded,
    )


def _reporting_ratio(flows: Sequence[EngineFlow], fresh: Freshness) -> float:
    """Return the share of the engines that have reported a window; at the first tick none has."""
    known = {(flow.pod, flow.engine) for flow in flows}
    engines = [(pod.name, engine.engine) for pod, engine in fresh.engines]
    return sum(key in known for key in engines) / len(engines) if engines else 1.0


def _with_dispersion(state: ArrivalState, rate: float, seconds: float) -> ArrivalState:
    """Add one term to the dispersion, from second differences of counts.

    Second differences cancel level and slope, so a ramp is not mistaken for burstiness.
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
