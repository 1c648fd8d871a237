"""What one scrape holds of one engine, and of its pod as a whole."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from servingslo.adapters.prometheus.buckets import Buckets
from servingslo.adapters.prometheus.servers import Source
from servingslo.runtimes.profile import MetricKind

# What the only engine of a pod is called where the runtime has no engine label.
ONLY_ENGINE = "0"


@dataclass(slots=True)
class Scraped:
    """What one scrape of one engine holds, by metric name."""

    numbers: dict[str, float] = field(default_factory=dict)
    splits: dict[str, dict[str, float]] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    histograms: dict[str, Buckets] = field(default_factory=dict)
    ages: dict[str, float] = field(default_factory=dict)

    def newest_age(self) -> float:
        """Age of the newest group, infinite when no age is known."""
        return min(self.ages.values(), default=math.inf)

    def names(self) -> frozenset[str]:
        """Names of all metrics that it holds, of histograms the base names."""
        capacity = {name for key, name in self.capacity.items() if key == "__name__"}
        return frozenset({*self.numbers, *self.splits, *self.histograms, *capacity})

    def absorb(self, other: "Scraped") -> None:
        """Take what another record of the same scrape has beside."""
        self.numbers = other.numbers | self.numbers
        self.splits = other.splits | self.splits
        self.histograms = other.histograms | self.histograms
        self.capacity = self.capacity or other.capacity
        self.ages = other.ages | self.ages

    def part(self, names: Iterable[str], share: float) -> "Scraped":
        """This share of what is counted under these names, with its ages."""
        wanted = set(names)
        return Scraped(
            numbers={n: share * v for n, v in self.numbers.items() if n in wanted},
            splits={
                n: {key: share * v for key, v in split.items()}
                for n, split in self.splits.items()
                if n in wanted
            },
            histograms={n: b.scaled(share) for n, b in self.histograms.items() if n in wanted},
            ages={kind: age for kind, age in self.ages.items() if kind != MetricKind.GAUGE},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedNames:
    """Names of counters and histograms. requests: those of requests that ended, or began."""

    every: frozenset[str]
    requests: frozenset[str]


def with_pod_metrics(
    scraped: Mapping[tuple[Source, str], Scraped],
    counted: CountedNames,
    engine_count: Callable[[Source], int],
) -> dict[tuple[Source, str], Scraped]:
    """Give what carries no engine label to the engines of the same scrape.

    A server that counts its requests once, in front of its engines, counts for all of them: each
    is given an equal share, for nothing tells which of them served. All else goes to the first.
    engine_count: that the server of a scrape is known to have; a page may lack one of them.
    """
    named = {key: record for key, record in scraped.items() if key[1]}
    engines: dict[Source, list[str]] = defaultdict(list)
    for source, engine in named:
        engines[source].append(engine)
    for (source, engine), record in scraped.items():
        if engine:
            continue
        own = sorted(engines.get(source, ()))
        if not own:
            named[source, ONLY_ENGINE] = record
            continue
        held = record.names()
        count = max(engine_count(source), len(own))
        if count > 1 and held & counted.requests:
            by_engine: set[str] = set().union(*(named[source, one].names() for one in own))
            shared = (held & counted.every) - by_engine
            part = record.part(shared, 1.0 / count)
            for one in own:
                named[source, one].absorb(part)
        named[source, own[0]].absorb(record)
    return named
