"""Detect a reading whose samples are older than reported.

A cache may return an answer of some seconds ago as current. Then each sample seems to be scraped
later than it was. The next scrape's counts fall into a too short window and look like a burst.
The sign of such a sample: a busy engine's scrape seems new, comes earlier than its usual interval,
and has no new number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from servingslo.adapters.prometheus.reading.servers import Pod
from servingslo.errors import ImplausibleMetricsError
from servingslo.estimation.sample import EngineSample
from servingslo.estimation.windows.counters import SAME_SCRAPE_SECONDS
from servingslo.policy.ports import PodMetrics

# Scrapes with new numbers that are needed to know an engine's scrape interval.
KNOWN_SCRAPES = 5
# Real scrapes keep their interval to within some milliseconds.
SOONER_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last scrape of an engine. apart_seconds: least interval of those with new numbers."""

    at_seconds: float
    numbers: tuple[object, ...]
    apart_seconds: float = float("inf")
    scrapes: int = 0


class ScrapePace:
    """The scrape interval of each engine; for one thread at a time."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Pod, str, str | None], _Seen] = {}
        self._refused = False

    def check(self, pods: Mapping[Pod, PodMetrics], at_seconds: float) -> None:
        """Check the engines of a reading, with their ages at this time of the server's clock.

        Raises: ImplausibleMetricsError for a reading that is older than reported; not twice in a
        row, because an engine may be idle while its scrape interval changes.
        """
        seen: dict[tuple[Pod, str, str | None], _Seen] = {}
        for pod, metrics in pods.items():
            for engine in metrics.engines:
                age = engine.counters_age_seconds
                if age is None:
                    continue
                key = pod, engine.engine, engine.runtime
                known = self._seen.get(key)
                now = _Seen(at_seconds - age, _numbers(engine))
                seen[key] = now if known is None else self._next(pod, engine, known, now)
        self._seen, self._refused = seen, False

    def _next(self, pod: Pod, engine: EngineSample, known: _Seen, now: _Seen) -> _Seen:
        moved = now.at_seconds - known.at_seconds
        if moved <= SAME_SCRAPE_SECONDS:
            return known
        if now.numbers != known.numbers:
            apart = min(known.apart_seconds, moved)
            return _Seen(now.at_seconds, now.numbers, apart, known.scrapes + 1)
        sooner = moved < SOONER_RATIO * known.apart_seconds
        if engine.running and sooner and known.scrapes >= KNOWN_SCRAPES and not self._refused:
            self._refused = True
            detail = (
                f"a sample of pod {pod[1]} is said to be {moved:.1f} s newer and has no new "
                f"number; its scrapes are {known.apart_seconds:.3g} s apart: an old answer"
            )
            raise ImplausibleMetricsError(detail)
        return _Seen(now.at_seconds, now.numbers, known.apart_seconds, known.scrapes)


def _numbers(engine: EngineSample) -> tuple[object, ...]:
    return (
        engine.generation_tokens_total,
        engine.prompt_tokens_total,
        tuple(engine.finished_total.items()),
        engine.running,
        engine.waiting,
        engine.kv_usage_ratio,
    )
