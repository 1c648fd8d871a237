"""Rebuild a trace from metrics: arrival times and lengths of requests, from counters.

Counts are exact for each interval between two scrapes of an engine. Inside it, arrivals are spread
evenly at random, even in a long interval: arrivals during failed scrapes did not come at once.
Lengths are drawn from the histograms of the requests that ended around that time, prompt and output
separately. Their means are exact; their correlation is lost. Requests that never reached an engine
are lost too, except refusals by a gateway, if one was read. A refused request that is sent again
counts again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from servingslo.errors import InvalidInputError
from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.gateway import counts as gateway
from servingslo.estimation.gateway.counts import InstanceFlow
from servingslo.estimation.requests.histograms import length_distribution, pooled_delta
from servingslo.estimation.sample import HistogramSample, PodSample
from servingslo.estimation.windows.balance import arrivals_of
from servingslo.estimation.windows.counters import EngineMemory, advance
from servingslo.estimation.windows.scrapes import histograms_time_seconds
from servingslo.estimation.windows.unscraped_pods import counting_for_seconds
from servingslo.models.workload import LengthDistribution
from servingslo_lab.sim.traces.trace import IntArray, Trace

# With fewer ended requests lengths are uncertain, so intervals are merged until there are enough.
_LEAST_LENGTHS = 100.0
_PAIRS = list[tuple[HistogramSample | None, HistogramSample]]


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """Intervals whose requests get their lengths from one pair of distributions.

    intervals: begin, end and arrivals.
    """

    intervals: list[tuple[float, float, int]] = field(default_factory=list)
    prompts: _PAIRS = field(default_factory=list)
    outputs: _PAIRS = field(default_factory=list)

    @property
    def ended(self) -> float:
        delta = pooled_delta(self.outputs)
        return 0.0 if delta is None else delta.count


def trace_from_metrics(samples: Sequence[FleetSample], rng: np.random.Generator) -> Trace:
    """The requests of a workload between its first and its last sample, as far as scraped.

    Raises: InvalidInputError if fewer than two samples have engines that count requests and their
    lengths, or there are no arrivals.
    """
    ordered = sorted(samples, key=lambda sample: sample.time_seconds)
    if len(ordered) < 2:
        raise InvalidInputError("samples", len(ordered), "two or more")
    chunks = _chunks(ordered)
    # Samples are never younger than this; without it the trace would end without arrivals.
    start = ordered[0].time_seconds - _least_age_seconds(ordered)
    duration = ordered[-1].time_seconds - ordered[0].time_seconds
    arrivals, prompts, outputs = [], [], []
    lengths: tuple[LengthDistribution, LengthDistribution] | None = None
    for chunk in reversed(chunks):
        # Only the newest chunk may be too small for its own lengths.
        found = _lengths(chunk)
        lengths = found or lengths or _first(chunks)
        for begin, end, count in chunk.intervals:
            arrivals.append(rng.uniform(begin - start, end - start, count))
            prompts.append(_drawn(lengths[0], count, rng))
            outputs.append(_drawn(lengths[1], count, rng))
    if not sum(map(len, arrivals)):
        raise InvalidInputError("samples", "no requests", "requests between the samples")
    times = np.concatenate(arrivals)
    order = np.argsort(times, kind="stable")
    # The first interval may begin before the first sample.
    order = order[times[order] >= 0.0]
    return Trace(
        arrival_seconds=times[order],
        prompt_tokens=np.concatenate(prompts)[order],
        output_tokens=np.concatenate(outputs)[order],
        duration_seconds=duration,
        start_seconds=start,
    )


def _chunks(samples: Sequence[FleetSample]) -> list[_Chunk]:
    memories: dict[tuple[str, str], EngineMemory] = {}
    through: tuple[InstanceFlow, ...] = ()
    chunks, chunk, owed = [], _Chunk(), 0.0
    before: float | None = None
    for sample in samples:
        now = sample.time_seconds
        counts = [c for pod in sample.pods for c in _read(pod, now, before, memories, chunk)]
        through, refused = _refused(through, sample)
        for begin, end, counted in (*counts, *refused):
            # Arrivals of an interval may be slightly negative; only sums are exact.
            owed += counted
            count = max(round(owed), 0)
            owed -= count
            chunk.intervals.append((begin, end, count))
        if chunk.ended >= _LEAST_LENGTHS:
            chunks.append(chunk)
            chunk = _Chunk()
        before = now
    return [*chunks, chunk]


def _read(
    pod: PodSample,
    now: float,
    before: float | None,
    memories: dict[tuple[str, str], EngineMemory],
    chunk: _Chunk,
) -> Iterator[tuple[float, float, float]]:
    """Begin, end and arrivals of the pod's new intervals; the lengths go to the chunk."""
    for engine in pod.engines:
        key = (pod.name, engine.engine)
        elapsed = None if key in memories or before is None else now - before
        counting = counting_for_seconds(pod, engine, elapsed)
        step = advance(memories.get(key), pod, engine, now, counting)
        memories[key] = step.memory
        if step.flow is None or step.after is None:
            continue
        end = histograms_time_seconds(engine, now)
        yield end - step.flow.seconds, end, arrivals_of(step.flow) or 0.0
        for pairs, name in ((chunk.prompts, "prompt_tokens"), (chunk.outputs, "output_tokens")):
            after = getattr(step.after, name)
            if after is not None:
                pairs.append((None if step.before is None else getattr(step.before, name), after))


def _refused(
    before: tuple[InstanceFlow, ...], sample: FleetSample
) -> tuple[tuple[InstanceFlow, ...], list[tuple[float, float, float]]]:
    """The gateway's windows after a sample; begin, end and refusals of those that are new."""
    known = {flow.instance.name: flow for flow in before}
    flows, _ = gateway.measure(
        before, sample.gateway, sample.time_seconds, sample.stale_after_seconds
    )
    new = (flow for flow in flows if flow.seconds > 0.0 and known[flow.instance.name] is not flow)
    return flows, [
        (
            flow.time_seconds - flow.seconds,
            flow.time_seconds,
            flow.rejected_per_second * flow.seconds,
        )
        for flow in new
    ]


def _least_age_seconds(samples: Sequence[FleetSample]) -> float:
    """The least age of histograms when read; 0 if there are none."""
    ages = (
        sample.time_seconds - histograms_time_seconds(engine, sample.time_seconds)
        for sample in samples
        for pod in sample.pods
        for engine in pod.engines
    )
    return max(min(ages, default=0.0), 0.0)


def _lengths(chunk: _Chunk) -> tuple[LengthDistribution, LengthDistribution] | None:
    prompts, outputs = pooled_delta(chunk.prompts), pooled_delta(chunk.outputs)
    if prompts is None or outputs is None:
        return None
    one, other = length_distribution(prompts), length_distribution(outputs)
    return None if one is None or other is None else (one, other)


def _first(chunks: Sequence[_Chunk]) -> tuple[LengthDistribution, LengthDistribution]:
    found = next((lengths for chunk in reversed(chunks) if (lengths := _lengths(chunk))), None)
    if found is None:
        allowed = "histograms of prompt and output tokens in which requests ended"
        raise InvalidInputError("samples", "no lengths", allowed)
    return found


def _drawn(lengths: LengthDistribution, count: int, rng: np.random.Generator) -> IntArray:
    tokens = rng.choice(lengths.tokens, size=count, p=lengths.weights)
    drawn: IntArray = np.maximum(np.rint(tokens), 1).astype(np.int64)
    return drawn
