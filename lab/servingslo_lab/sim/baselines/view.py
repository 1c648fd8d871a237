"""Inputs of other autoscalers' rules: the last scrapes of a fleet, as in PromQL."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from servingslo.estimation.requests.histograms import HistogramDelta, pooled_delta
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.policy.inputs import Observation

LONGEST_WINDOW_SECONDS = 1800.0
_PERCENT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One scrape: ready engines by pod. replicas: wanted; live: existing pods that are kept."""

    time_seconds: float
    replicas: int
    live: int
    engines: dict[str, EngineSample]
    unready: int

    @property
    def ready(self) -> int:
        """Number of pods with metrics."""
        return len(self.engines)

    def values(self, read: Callable[[EngineSample], float | None]) -> dict[str, float]:
        """A gauge of each pod; pods without it are left out."""
        found = {name: read(engine) for name, engine in self.engines.items()}
        return {name: value for name, value in found.items() if value is not None}


def running(engine: EngineSample) -> float | None:
    """Requests in the batch."""
    return engine.running


def waiting(engine: EngineSample) -> float | None:
    """Requests in the queue."""
    return engine.waiting


def kv_usage(engine: EngineSample) -> float | None:
    """Share of the KV cache in use."""
    return engine.kv_usage_ratio


def in_system(engine: EngineSample) -> float | None:
    """Requests running and waiting."""
    if engine.running is None or engine.waiting is None:
        return None
    return engine.running + engine.waiting


def ready_pods(observation: Observation) -> list[PodSample]:
    """Pods that serve and stay."""
    return [pod for pod in observation.pods if pod.ready and pod.engines and not pod.deleting]


def all_in_system(pods: Iterable[PodSample]) -> float | None:
    """Requests running and waiting on all of these; None if none of them tells."""
    counts = [in_system(pod.engines[0]) for pod in pods]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


class View:
    """The scrapes of the last half hour, newest last."""

    def __init__(self) -> None:
        self._scrapes: deque[Scrape] = deque()

    def add(self, observation: Observation) -> Scrape:
        """Store the current observation as a scrape, and return it."""
        kept = [pod for pod in observation.pods if not pod.deleting]
        engines = {pod.name: pod.engines[0] for pod in kept if pod.ready and pod.engines}
        scrape = Scrape(
            time_seconds=observation.time_seconds,
            replicas=observation.desired_replicas or 0,
            live=len(kept),
            engines=engines,
            unready=len(kept) - len(engines),
        )
        self._scrapes.append(scrape)
        while scrape.time_seconds - self._scrapes[0].time_seconds > LONGEST_WINDOW_SECONDS:
            self._scrapes.popleft()
        return scrape

    def within(self, window_seconds: float) -> list[Scrape]:
        """The scrapes of the window that ends now."""
        now = self._scrapes[-1].time_seconds
        return [s for s in self._scrapes if now - s.time_seconds <= window_seconds]

    def mean(self, total: Callable[[Scrape], float | None], window_seconds: float) -> float | None:
        """Mean over the window of a number of each scrape; None if no scrape has it."""
        found = [total(scrape) for scrape in self.within(window_seconds)]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known else None

    def rate(
        self, counter: Callable[[EngineSample], float | None], window_seconds: float
    ) -> float | None:
        """Sum over pods of the counter's rate in the window, per second; None without two samples.

        A series that begins inside the window counts from its first sample, as in PromQL.
        """
        total: float | None = None
        for samples in self._series(window_seconds).values():
            (began, first), (ended, last) = samples[0], samples[-1]
            before, after = counter(first), counter(last)
            if ended > began and before is not None and after is not None:
                total = (total or 0.0) + max(after - before, 0.0) / (ended - began)
        return total

    def window(
        self, histogram: Callable[[EngineSample], HistogramSample | None], window_seconds: float
    ) -> HistogramDelta | None:
        """Observations in the window, all pods together; None if there are none."""
        pairs: list[tuple[HistogramSample | None, HistogramSample]] = []
        for samples in self._series(window_seconds).values():
            first, last = histogram(samples[0][1]), histogram(samples[-1][1])
            if len(samples) > 1 and first is not None and last is not None:
                pairs.append((first, last))
        found = pooled_delta(pairs)
        return found if found is not None and found.count > 0 else None

    def _series(self, window_seconds: float) -> dict[str, list[tuple[float, EngineSample]]]:
        series: dict[str, list[tuple[float, EngineSample]]] = {}
        for scrape in self.within(window_seconds):
            for name, engine in scrape.engines.items():
                series.setdefault(name, []).append((scrape.time_seconds, engine))
        return series


def histogram_quantile(delta: HistogramDelta, quantile: float) -> float | None:
    """PromQL's histogram_quantile: linear inside the bucket, the last finite edge beyond it."""
    found = delta.bucket_of(quantile * _PERCENT)
    if found is None:
        return None
    lower, upper, share = found
    return lower if upper == float("inf") else lower + share * (upper - lower)


def served_lengths(view: View, window_seconds: float) -> tuple[float, float] | None:
    """Mean prompt and output tokens of the window's requests; None without any."""
    prompts = view.window(lambda engine: engine.prompt_tokens, window_seconds)
    outputs = view.window(lambda engine: engine.output_tokens, window_seconds)
    if prompts is None or outputs is None or prompts.mean is None or outputs.mean is None:
        return None
    return prompts.mean, outputs.mean


def request_rate(view: View, window_seconds: float) -> float | None:
    """First tokens per second: the engines' measure of arrivals; it saturates with them."""

    def count(engine: EngineSample) -> float | None:
        return None if engine.ttft_seconds is None else engine.ttft_seconds.count

    return view.rate(count, window_seconds)
