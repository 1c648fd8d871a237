"""Flow of each engine, from its windows; what a vanished engine leaves to the others."""

from collections.abc import Sequence

from servingslo.copying import replace
from servingslo.estimation.windows.balance import arrivals_of, tells_all
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.endings import NOT_COUNTED, Endings
from servingslo.estimation.windows.freshness import Freshness
from servingslo.estimation.windows.unscraped_pods import hidden_seconds
from servingslo.records import record

# What is added to the error of the sum of flows if all engines are new.
UNSETTLED_ERROR_RATIO = 0.2
# Share of a vanished engine's flow that the others' windows do not show yet; for one tick.
# Judgement; measured by the demand that is planned for in a rolling restart, by simulation.
VANISHED_SHARE = 0.5


@record(frozen=True, slots=True, kw_only=True)
class EngineFlow:
    """The last measured flow of one engine, per second, over `seconds`.

    vanished: the engine is gone. Its requests go to others now, but their last windows began before
    that; on average half of the flow is missing in them. counts_refusals: it exports them.
    endings: without a whole answer, per second.
    """

    pod: str
    engine: str
    arrivals_per_second: float
    rejections_per_second: float
    seconds: float
    vanished: bool = False
    counts_refusals: bool = False
    endings: Endings = NOT_COUNTED


def sum_of(flows: Sequence[EngineFlow]) -> float:
    """Arrivals of all engines, per second."""
    return max(sum(flow.arrivals_per_second for flow in flows), 0.0)


def longest_seconds(windows: Sequence[Window]) -> float:
    """Length of the longest window."""
    return max((window.seconds for window in windows), default=0.0)


def counted_flows(
    old: tuple[EngineFlow, ...], windows: Sequence[Window], fresh: Freshness
) -> tuple[tuple[EngineFlow, ...], Sequence[Window], float | None]:
    """Return flows after this tick, the windows used, and the rate of windows that are not used.

    That rate is unknown while no ready pod has usable engines.

    If a new pod served unscraped for a large part of a window (more than the error that new engines
    have anyway), a lower sum means nothing: the previous flows are kept. An engine's own flow is
    also kept if it restarted inside the window: arrivals before the restart are in no counter.
    """
    known = {(flow.pod, flow.engine): flow.arrivals_per_second for flow in old}
    windows = [w for w in windows if tells_all(w, known.get((w.pod, w.engine), 0.0))]
    flows = _flows(old, windows, fresh)
    if hidden_seconds(fresh, windows) > UNSETTLED_ERROR_RATIO * longest_seconds(windows):
        before = _flows(old, (), fresh)
        if sum_of(flows) < sum_of(before):
            seen_ratio = fresh.coverage_ratio
            return before, (), sum_of(flows) / seen_ratio if seen_ratio > 0.0 else None
    return flows, windows, None


def _flows(
    old: tuple[EngineFlow, ...], windows: Sequence[Window], fresh: Freshness
) -> tuple[EngineFlow, ...]:
    """Return flows after windows: half of a lost pod's flow goes to the others at once."""
    engines = {(pod.name, engine.engine) for pod, engine in fresh.engines}
    unseen = {pod for pod, _ in fresh.unseen}
    flows = {}
    for flow in old:
        key = flow.pod, flow.engine
        if key in engines:
            flows[key] = replace(flow, vanished=False) if flow.vanished else flow
        elif not flow.vanished and flow.pod not in unseen:
            flows[key] = replace(
                flow,
                arrivals_per_second=VANISHED_SHARE * flow.arrivals_per_second,
                rejections_per_second=VANISHED_SHARE * flow.rejections_per_second,
                vanished=True,
            )
    for window in windows:
        count = arrivals_of(window)
        if count is not None:
            flows[window.pod, window.engine] = EngineFlow(
                pod=window.pod,
                engine=window.engine,
                arrivals_per_second=count / window.seconds,
                rejections_per_second=(window.rejected or 0.0) / window.seconds,
                seconds=window.seconds,
                counts_refusals=window.rejected is not None,
                endings=window.endings.over(window.seconds),
            )
    return tuple(flows.values())
