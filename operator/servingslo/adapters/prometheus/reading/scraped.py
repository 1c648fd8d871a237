"""The data of one scrape: of one engine, and of its pod as a whole."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from servingslo.adapters.prometheus.reading.buckets import Buckets
from servingslo.adapters.prometheus.reading.servers import GAUGE_PART, Source
from servingslo.runtimes.profile import MetricKind

# Name of a pod's only engine if the runtime has no engine label.
ONLY_ENGINE = "0"


@dataclass(slots=True)
class Scraped:
    """The data of one scrape of one engine, by metric name."""

    numbers: dict[str, float] = field(default_factory=dict)
    splits: dict[str, dict[str, float]] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapters_at: float = -math.inf
    tokens_by_model: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Buckets] = field(default_factory=dict)
    ages: dict[str, float] = field(default_factory=dict)

    def newest_age(self) -> float:
        """Age of the newest group; infinite if no age is known."""
        return min(self.ages.values(), default=math.inf)

    def names(self) -> frozenset[str]:
        """Names of all its metrics; for histograms the base names."""
        capacity = {name for key, name in self.capacity.items() if key == "__name__"}
        return frozenset({*self.numbers, *self.splits, *self.histograms, *capacity})

    def counts(self, counted: "CountedNames") -> dict[tuple[str, str], float]:
        """The counters with the histograms' buckets, one that counts requests first; the gauges."""
        found = {
            (name, "" if name in counted.every else GAUGE_PART): value
            for name, value in self.numbers.items()
        }
        found |= {(name, part): v for name, each in self.splits.items() for part, v in each.items()}
        for name, one in self.histograms.items():
            found |= {(name, "count"): one.count or 0.0, (name, "sum"): one.sum or 0.0}
            found |= {
                (name, f"{number} {edge}"): value
                for number, part in enumerate(one.parts)
                for edge, value in part.items()
            }
        first = min(found, key=lambda key: (key[0] not in counted.requests, key), default=None)
        return found if first is None else {first: found[first], **found}

    def add_adapters(self, labels: Mapping[str, str], at_seconds: float) -> None:
        """Keep the labels of the newest set of adapters."""
        if at_seconds > self.adapters_at:
            self.adapters, self.adapters_at = labels, at_seconds

    def absorb(self, other: "Scraped") -> None:
        """Add the data of another record of the same scrape."""
        self.numbers = other.numbers | self.numbers
        self.splits = other.splits | self.splits
        self.histograms = other.histograms | self.histograms
        self.capacity = self.capacity or other.capacity
        self.adapters = self.adapters or other.adapters
        self.tokens_by_model = other.tokens_by_model | self.tokens_by_model
        self.ages = other.ages | self.ages

    def part(self, names: Iterable[str], share: float) -> "Scraped":
        """This share of the counts under these names, with their ages."""
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
    """Names of counters and histograms. requests: those that count requests at start or end."""

    every: frozenset[str]
    requests: frozenset[str]


def with_pod_metrics(
    scraped: Mapping[tuple[Source, str], Scraped],
    counted: CountedNames,
    engine_count: Callable[[Source], int],
) -> dict[tuple[Source, str], Scraped]:
    """Assign data without an engine label to the engines of the same scrape.

    A server in front of several engines may count requests once for all. Each engine gets an equal
    share, because the serving engine is unknown. All other data goes to the first engine.
    engine_count: known number of engines of a scrape's server; its page may lack one of them.
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
