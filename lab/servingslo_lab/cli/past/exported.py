"""Read the operator's past metrics of one resource from Prometheus."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from servingslo.adapters.prometheus.client import PrometheusClient
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.refusals import MALFORMED
from servingslo.errors import InvalidInputError, MetricsUnavailableError, QueryRefusedError

# Characters that Kubernetes allows in both names; none can end a quoted string.
# Source: RFC 1123, as in apimachinery's validation of DNS subdomains.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One past interval of a pool. Values that Prometheus does not have are None or absent.

    pool: '' of a single target.
    end_seconds: end of the interval, since the epoch.
    replicas_least, replicas_greatest: of the decisions. replica_changes: number of changes.
    ready_replicas, arrivals_per_second: means.
    binding: the objective that bound longest. limited_by: the reason that limited or prevented
    decisions longest. limited_ratio: its share of the interval's known time.
    within_ratio: mean of the least share within the threshold, by objective ('ttft p99').
    """

    end_seconds: float
    pool: str = ""
    replicas_least: float | None = None
    replicas_greatest: float | None = None
    replica_changes: float | None = None
    ready_replicas: float | None = None
    arrivals_per_second: float | None = None
    binding: str | None = None
    limited_by: str | None = None
    limited_ratio: float | None = None
    within_ratio: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A resource, an end time on Prometheus' clock, a time span and its intervals.

    Raises: InvalidInputError for an invalid namespace or name.
    """

    namespace: str
    name: str
    end_seconds: int
    interval_seconds: int
    count: int

    def __post_init__(self) -> None:
        for part, text in (("NAMESPACE", self.namespace), ("NAME", self.name)):
            if not _NAME.fullmatch(text):
                raise InvalidInputError(part, text, "lower-case letters, digits, '-' and '.'")


_COUNT = "servingslo_replicas_current{chosen}[{window}]"
_NUMBERS = {
    "replicas_least": f"min by (name) (min_over_time({_COUNT}))",
    "replicas_greatest": f"max by (name) (max_over_time({_COUNT}))",
    "ready_replicas": "max by (name) (avg_over_time(servingslo_replicas_ready{chosen}[{window}]))",
    "arrivals_per_second": (
        "max by (name) (avg_over_time(servingslo_arrivals_per_second{chosen}[{window}]))"
    ),
}
# Over all pods of the operator, and from the last evaluation before the interval on: a change
# between two intervals, or at a takeover, counts too.
_CHANGES = "changes(max by (name) (servingslo_replicas_current{chosen})[{wider}:{resolution}])"
_BINDING = "sum by (constraint) (count_over_time(servingslo_binding_constraint{chosen}[{window}]))"
_LIMITED_BY = "sum by (reason) (count_over_time(servingslo_limited_by{chosen}[{window}]))"
# Of the whole resource if nothing could be decided, which no pool is named for.
_NOT_READY = "sum by (reason) (count_over_time(servingslo_not_ready{chosen_or_whole}[{window}]))"
# Pools that had a count in the time asked about.
_POOLS = "count by (pool) (count_over_time(servingslo_replicas_current{whole}[{window}]))"
_SCRAPES = f"sum by (name) (count_over_time({_COUNT}))"
_SHARES = (
    "min by (metric, percentile) "
    "(avg_over_time(servingslo_within_objective_ratio{chosen}[{window}]))"
)

# Evaluations for changes in one interval, at least; in a long interval one per default tick.
_LEAST_LOOKS = 10
_LONGEST_RESOLUTION_SECONDS = 15

Points = list[tuple[int, float]]


def read_exported(
    config: PrometheusConfig, question: Question, client: PrometheusClient | None = None
) -> tuple[Interval, ...]:
    """Read each interval, oldest first; of several pools one pool after the other.

    Raises: MetricsUnavailableError.
    """
    client = client or PrometheusClient(config)
    try:
        pools = _Asked(client, config, question).pools()
        return tuple(row for pool in pools for row in _read(_Asked(client, config, question, pool)))
    finally:
        client.close()


def _read(asked: "_Asked") -> Iterator[Interval]:
    try:
        numbers = {name: dict(asked.points(query)) for name, query in _NUMBERS.items()}
        numbers["replica_changes"] = asked.changes()
        binding = asked.words("constraint", _BINDING)
        limited_by = asked.words("reason", _LIMITED_BY, _NOT_READY)
        scrapes = dict(asked.points(_SCRAPES))
        shares = asked.shares()
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MetricsUnavailableError(MALFORMED) from error
    for at in asked.times:
        yield Interval(
            end_seconds=at,
            pool=asked.pool,
            replicas_least=numbers["replicas_least"].get(at),
            replicas_greatest=numbers["replicas_greatest"].get(at),
            replica_changes=numbers["replica_changes"].get(at),
            ready_replicas=numbers["ready_replicas"].get(at),
            arrivals_per_second=numbers["arrivals_per_second"].get(at),
            binding=binding[at][1] if at in binding else None,
            limited_by=limited_by[at][1] if at in limited_by else None,
            # Without any decision there is no replica count either.
            limited_ratio=limited_by[at][0] / max(scrapes.get(at, 0.0), limited_by[at][0])
            if at in limited_by
            else None,
            within_ratio=shares.get(at, {}),
        )


class _Asked:
    """One question to one Prometheus, about one pool; '' is a single target."""

    def __init__(
        self,
        client: PrometheusClient,
        config: PrometheusConfig,
        question: Question,
        pool: str = "",
    ) -> None:
        self.pool = pool
        self._client = client
        self._config = config
        self._question = question
        step = question.interval_seconds
        first = question.end_seconds - step * (question.count - 1)
        self.times = range(first, question.end_seconds + 1, step)

    def series(self, query: str) -> list[tuple[Mapping[str, str], Points]]:
        """Labels and points of each series of an answer."""
        question = self._question
        whole = (f'namespace="{question.namespace}"', f'name="{question.name}"')
        window = question.interval_seconds
        longest = max(min(window // _LEAST_LOOKS, _LONGEST_RESOLUTION_SECONDS), 1)
        resolution = next(r for r in range(longest, 0, -1) if window % r == 0)
        promql = query
        # A label that is absent equals an empty one.
        for name, more in (
            ("chosen", f'pool="{self.pool}"'),
            ("chosen_or_whole", f'pool=~"|{self.pool}"'),
            ("whole", ""),
        ):
            promql = promql.replace(f"{{{name}}}", self._config.selector(*whole, more))
        for name, seconds in (
            ("window", window),
            ("wider", window + resolution),
            ("resolution", resolution),
        ):
            promql = promql.replace(f"{{{name}}}", f"{seconds}s")
        answer = self._client.query_range(
            promql,
            start_seconds=self.times[0],
            end_seconds=self.times[-1],
            step_seconds=question.interval_seconds,
            deadline=time.monotonic() + self._config.reading_timeout_seconds,
        )
        return [
            (one["metric"], [(round(float(at)), float(value)) for at, value in one["values"]])
            for one in answer.result
        ]

    def pools(self) -> tuple[str, ...]:
        """The pools that had a count, in order; a single '' if there are none."""
        try:
            series = self.series(_POOLS)
            return tuple(sorted({labels.get("pool", "") for labels, _ in series})) or ("",)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise MetricsUnavailableError(MALFORMED) from error

    def changes(self) -> dict[int, float]:
        """Number of changes of the replica count; empty if the store has no subqueries."""
        try:
            return dict(self.points(_CHANGES))
        except QueryRefusedError:
            return {}

    def points(self, query: str) -> Points:
        """The points of the only series."""
        return next((points for _, points in self.series(query)), [])

    def words(self, label: str, *queries: str) -> dict[int, tuple[float, str]]:
        """The greatest series of several queries at each time: value and label."""
        best: dict[int, tuple[float, str]] = {}
        for labels, points in (one for query in queries for one in self.series(query)):
            for at, value in points:
                best[at] = max(best.get(at, (0.0, "")), (value, labels[label]))
        return best

    def shares(self) -> dict[int, dict[str, float]]:
        """The share of each objective at each time."""
        found: dict[int, dict[str, float]] = {}
        for labels, points in self.series(_SHARES):
            for at, value in points:
                found.setdefault(at, {})[f"{labels['metric']} p{labels['percentile']}"] = value
        return found
