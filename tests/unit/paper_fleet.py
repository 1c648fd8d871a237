"""A fleet on paper: requests that arrive and decode at one pace, and the pages that engines show.

Every request is served at once, so that what the pages say at any moment is exact: how many began,
how many ended, how many tokens were made. A test looks whenever it likes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from servingslo.estimation.estimate import FleetSample
from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample

EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
SECONDS_EDGES = (0.01, 0.1, 1.0, 10.0, 100.0)
FIRST_TOKEN_SECONDS = 0.2
TOKENS_PER_SECOND = 40.0
PROMPT_TOKENS = 400.0
OUTPUT_TOKENS = 128.0
# Engines have served for so long when the test begins.
BEFORE_SECONDS = 120.0


@dataclass(kw_only=True)
class PaperFleet:
    """Pods with the requests that each of them gets.

    rate: requests per second at all pods together. seconds: up to which they come. even: evenly
    spaced, or at random. begun: when a pod's counters stood at zero last. lost: whether its
    requests ended then, as those of a process that dies; else the counters alone began again.
    restarts_at: when Kubernetes shows a container's start, by pod.
    """

    rate: float
    pods: int
    seconds: float
    seed: int = 1
    even: bool = False
    scrape_seconds: float = 15.0
    begun: Mapping[int, float] = field(default_factory=dict)
    lost: bool = False
    restarts_at: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        span = self.seconds + BEFORE_SECONDS
        count = round(self.rate * span) if self.even else rng.poisson(self.rate * span)
        at = np.sort(rng.uniform(-BEFORE_SECONDS, self.seconds, count))
        if self.even:
            at = (np.arange(count) + 0.5) / self.rate - BEFORE_SECONDS
        pod = np.arange(count) % self.pods if self.even else rng.integers(0, self.pods, count)
        tokens = np.maximum(np.rint(rng.exponential(OUTPUT_TOKENS, count)), 1.0)
        self.phase = rng.uniform(0.0, self.scrape_seconds, self.pods)
        self._served = [
            _Served(at[pod == n], tokens[pod == n], self.begun.get(n) if self.lost else None)
            for n in range(self.pods)
        ]

    def look(self, now: float) -> FleetSample:
        """What Prometheus shows at this time."""
        return FleetSample(
            time_seconds=now,
            stale_after_seconds=60.0 + 2.0 * self.scrape_seconds,
            pods=tuple(self._pod(number, now) for number in range(self.pods)),
        )

    def _pod(self, number: int, now: float) -> PodSample:
        every, phase = self.scrape_seconds, self.phase[number]
        scraped = float(phase + every * np.floor((now - phase) / every))
        return PodSample(
            name=f"pod-{number}",
            template_hash="v1",
            image="engine:1",
            gpu_product="L4",
            ready=True,
            restarts=int(self.restarts_at.get(number, np.inf) <= now),
            age_seconds=now + 3.0 * BEFORE_SECONDS,
            ready_for_seconds=now + 2.0 * BEFORE_SECONDS,
            ready_after_seconds=BEFORE_SECONDS,
            scheduled_after_seconds=2.0,
            engines=(self._engine(number, scraped, now - scraped),),
        )

    def _engine(self, number: int, at: float, age: float) -> EngineSample:
        served, begun = self._served[number], self.begun.get(number, np.inf)
        counts = served.until(at)
        if begun <= at:
            zero = served.until(begun)
            counts = {name: counts[name] - zero[name] for name in counts}
        started, tokens = float(counts["started"]), float(counts["tokens"])
        lengths, ended = counts["lengths"], float(counts["ended"])
        return EngineSample(
            engine="0",
            gauges_age_seconds=age,
            counters_age_seconds=age,
            histograms_age_seconds=age,
            running=served.running(at),
            waiting=0.0,
            kv_usage_ratio=0.1,
            kv_capacity_tokens=400_000.0,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            prompt_tokens_total=PROMPT_TOKENS * started,
            cached_prompt_tokens_total=0.0,
            generation_tokens_total=tokens,
            finished_total={"stop": ended, "abort": 0.0},
            preempted_total=0.0,
            ttft_seconds=_alike(started, FIRST_TOKEN_SECONDS, SECONDS_EDGES),
            inter_token_seconds=_alike(tokens - started, 1.0 / TOKENS_PER_SECOND, SECONDS_EDGES),
            prompt_tokens=_alike(started, PROMPT_TOKENS, EDGES),
            output_tokens=HistogramSample(
                upper_bounds=(*EDGES, float("inf")),
                cumulative_counts=(*(float(count) for count in lengths), ended),
                sum=float(counts["ended_tokens"]),
                count=ended,
            ),
        )


class _Served:
    """The requests of one pod. dies: when those that run end with their process; never where None.

    They are no more in what was counted before, and in nothing that is counted since.
    """

    def __init__(self, at: np.ndarray, tokens: np.ndarray, dies: float | None) -> None:
        first = at + FIRST_TOKEN_SECONDS
        end = first + (tokens - 1.0) / TOKENS_PER_SECOND
        if dies is not None:
            begins = (at <= dies) & (first > dies)
            first, end, tokens, at = first[~begins], end[~begins], tokens[~begins], at[~begins]
            dying = (first <= dies) & (end > dies)
            made = 1.0 + np.floor((dies - first) * TOKENS_PER_SECOND)
            tokens, end = np.where(dying, made, tokens), np.where(dying, dies, end)
        order = np.argsort(end, kind="stable")
        self._at, self._first, self._end, self._tokens = at, first, end, tokens
        self._ends = end[order]
        self._sums = np.concatenate(([0.0], np.cumsum(tokens[order])))
        below = (tokens[order, None] <= np.array(EDGES)).cumsum(axis=0)
        self._lengths = np.vstack((np.zeros(len(EDGES)), below))
        self._longest = float((end - first).max(initial=0.0)) + 1.0

    def until(self, at: float) -> dict:
        """Everything that was counted up to a time."""
        ended = int(np.searchsorted(self._ends, at, side="right"))
        low, high = np.searchsorted(self._first, (at - self._longest, at), side="right")
        part = slice(int(low), int(high))
        runs = self._end[part] > at
        made = 1.0 + np.floor((at - self._first[part][runs]) * TOKENS_PER_SECOND)
        made = np.minimum(made, self._tokens[part][runs])
        return {
            "started": int(high),
            "ended": ended,
            "tokens": self._sums[ended] + made.sum(),
            "ended_tokens": self._sums[ended],
            "lengths": self._lengths[ended],
        }

    def running(self, at: float) -> float:
        """Requests in it, also those without a first token."""
        low, high = np.searchsorted(self._at, (at - self._longest - 1.0, at), side="right")
        return float((self._end[int(low) : int(high)] > at).sum())


def _alike(count: float, value: float, edges: Sequence[float]) -> HistogramSample:
    return HistogramSample(
        upper_bounds=(*edges, float("inf")),
        cumulative_counts=(*(count if value <= edge else 0.0 for edge in edges), count),
        sum=count * value,
        count=count,
    )
