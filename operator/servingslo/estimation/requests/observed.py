"""Latencies observed over the recent window, pooled over engines."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from servingslo.estimation.gateway.counts import GatewayFlow
from servingslo.estimation.requests.histograms import HistogramDelta, merge, pooled_delta
from servingslo.estimation.windows.counters import EngineStep
from servingslo.models.fleet.objective_metrics import ROWS
from servingslo.records import record

# Recent enough for the present load, long enough for a p99 at a few requests per second.
# Judgement; measured by the error of a p99 at one request per second, and by its age.
RECENT_SECONDS = 120.0
REMEMBERED_WINDOWS = 24
LATENCIES = tuple(row.metric.value for row in ROWS)
# Names under which observations of engines that export only sums are stored.
MEANS = {name: f"mean {name}" for name in LATENCIES}
# Times of transfers of a KV cache from a prefill to a decode engine.
TRANSFER = "transfer_seconds"
# Parts of the time of a request, and the gateway's time of a whole one.
PREFILL, DECODE, GATEWAY = "prefill_seconds", "decode_seconds", "gateway_seconds"
_PHASES = (PREFILL, DECODE, GATEWAY, TRANSFER)
# Latencies that contain transfers.
_WITH_TRANSFER = frozenset(row.metric.value for row in ROWS if row.along_path)
# Fields of a sample by the name that their observations have here.
_HISTOGRAMS = {row.metric.value: row.histogram for row in ROWS} | {
    "prompt": "prompt_tokens",
    "output": "output_tokens",
    TRANSFER: TRANSFER,
    PREFILL: PREFILL,
    DECODE: DECODE,
}


@record(frozen=True, slots=True, kw_only=True)
class ObservedWindow:
    """One tick's observations, by metric."""

    time_seconds: float
    deltas: Mapping[str, HistogramDelta]

    @property
    def latencies(self) -> Mapping[str, HistogramDelta]:
        """The observations, without the transfers of KV caches."""
        return without_transfers(self.deltas, self.deltas.get(TRANSFER))


@record(frozen=True, slots=True, kw_only=True)
class ObservedState:
    """The windows of the last two minutes."""

    windows: tuple[ObservedWindow, ...] = ()

    def latencies(self, now_seconds: float) -> dict[str, HistogramDelta]:
        """Latencies over the recent window by metric; metrics without observations are absent.

        Without the transfers of KV caches: see `without_transfers`.
        """
        found = self._recent({metric: metric for metric in LATENCIES}, now_seconds)
        return without_transfers(found, self._transfers(now_seconds))

    def means(self, now_seconds: float) -> dict[str, HistogramDelta]:
        """Sums and counts over the recent window by metric, of engines that export only those."""
        return self._recent(MEANS, now_seconds)

    def phases(self, now_seconds: float) -> dict[str, HistogramDelta]:
        """Parts of the time of a request over the recent window, of those that are exported."""
        return self._recent({name: name for name in _PHASES}, now_seconds)

    def transfer_mean_seconds(self, now_seconds: float) -> float | None:
        """Mean time of a transfer of a KV cache over the recent window; None without any."""
        found = self._transfers(now_seconds)
        return None if found is None else found.mean

    def _transfers(self, now_seconds: float) -> HistogramDelta | None:
        return self._recent({TRANSFER: TRANSFER}, now_seconds).get(TRANSFER)

    def _recent(self, names: Mapping[str, str], now_seconds: float) -> dict[str, HistogramDelta]:
        recent = [w for w in self.windows if now_seconds - w.time_seconds < RECENT_SECONDS]
        found = {
            metric: merge([w.deltas[name] for w in recent if name in w.deltas])
            for metric, name in names.items()
        }
        return {metric: delta for metric, delta in found.items() if delta and delta.count > 0}


def without_transfers(
    latencies: Mapping[str, HistogramDelta], transfers: HistogramDelta | None
) -> dict[str, HistogramDelta]:
    """Latencies of engines that read KV caches, less the mean transfer of a request.

    Such an engine has a request from the beginning of the transfer on, so its histograms contain
    it. A plan has the transfer as a step of its own. Requests without one count in the mean.
    Source: vLLM `v1/core/sched/scheduler.py`, WAITING_FOR_REMOTE_KVS.
    """
    mean = None if transfers is None else transfers.mean
    if transfers is None or not mean:
        return dict(latencies)
    return {
        name: delta.reduced_by(min(transfers.sum / delta.count, mean))
        if name in _WITH_TRANSFER and delta.count > 0
        else delta
        for name, delta in latencies.items()
    }


def pool(steps: Sequence[EngineStep]) -> dict[str, HistogramDelta]:
    """Return the observations since the last tick over all engines, by metric."""
    ended = [s for s in steps if s.flow is not None and s.after is not None]
    if not ended:
        return {}
    found = {}
    for name, field in _HISTOGRAMS.items():
        read = attrgetter(field)
        pairs = [
            (None if s.before is None else read(s.before), after)
            for s in ended
            if s.after is not None and (after := read(s.after)) is not None
        ]
        delta = pooled_delta(pairs)
        if delta is not None:
            found[name] = delta
    return found


def gateway_times(flow: GatewayFlow | None) -> dict[str, HistogramDelta]:
    """Return the gateway's times of whole requests since its last scrapes, by name."""
    found = None if flow is None else pooled_delta(flow.latencies)
    return {} if found is None else {GATEWAY: found}


def observe_latencies(
    state: ObservedState, histograms: Mapping[str, HistogramDelta], now_seconds: float
) -> ObservedState:
    """Add this tick's latencies, and drop those that are too old."""
    names = (*LATENCIES, *MEANS.values(), *_PHASES)
    deltas = {name: histograms[name] for name in names if name in histograms}
    kept = [w for w in state.windows if now_seconds - w.time_seconds < RECENT_SECONDS]
    if deltas:
        kept.append(ObservedWindow(time_seconds=now_seconds, deltas=deltas))
    return ObservedState(windows=tuple(kept[-REMEMBERED_WINDOWS:]))
