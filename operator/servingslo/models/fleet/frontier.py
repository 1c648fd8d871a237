"""The capacity frontier: the greatest arrival rate at which a constraint holds, by fleet size.

R_k(n) is that rate for constraint k, a percentile and its limit, on n engines. It depends on the
mix of requests, the law and the limits of the engine. It never depends on demand, nor on another
constraint. Every question about capacity is answered from it: the least n with R_k(n) ≥ λ, the
binding constraint (the least R_k), the rate that n engines may admit, the savings of a looser
objective. Rates are computed on first use and kept, so that a repeated question evaluates no law.

Limits move with calibration and mixes with their samples, a little at a time. A crossing found
before such a move bounds the one after it (`crossing_band`). If the last answer is within every
bound it stands, and no law is evaluated. Any other answer is found from rows of this mix and limit.

Percentiles rise with load, except for up to 4 % from the inversion and where the swing of bursts
becomes too small to count. So the result is a crossing below which no search has found another.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from servingslo.models.fleet.crossing import Crossing, CrossingSearch
from servingslo.models.fleet.crossing_band import Band, KeptCrossings
from servingslo.models.fleet.full_batch import full_batch_of
from servingslo.models.fleet.latency import LatencyModel
from servingslo.models.fleet.objective_metrics import metric_seconds, prepare
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.numerics import ROUNDING
from servingslo.models.objectives import LatencyMetric, Objective, Routing

# No engine is planned at more of its saturation rate: percentiles diverge there, and laws take
# several times as long to evaluate.
GREATEST_UTILIZATION = 0.95
# In effect one request at a time: the least value of any percentile.
IDLE_RATE_PER_SECOND = 1e-6
# Readings are interpolated between loads this far apart in the logarithm of u/(1 − u), u the
# utilization: there the logarithm of a wait is almost a straight line. Within 3 % of the law, next
# to saturation too.
READING_STEP = 0.15
LEAST_READ_UTILIZATION = 1e-4
# Rounds in which the count is guessed from the engine rate at the last count, which hardly depends
# on the count. If that does not end a search, the rest is halved.
GUESSED_ROUNDS = 4


class Limit(NamedTuple):
    """A constraint: a percentile (in percent) and its largest allowed value.

    metric: None for the share of the KV cache in use, of which most is a share; else most is in
    predicted seconds, before calibration.
    """

    metric: LatencyMetric | None
    percentile: float
    most: float

    def of(self, prediction: Prediction) -> float:
        """Return the percentile of a load."""
        if self.metric is None:
            return prediction.kv_usage_quantile(self.percentile)
        return metric_seconds(prediction, self.metric, self.percentile)


class Fleet(NamedTuple):
    """Engines behind a router."""

    engines: int
    routing: Routing


Row = tuple[Limit, Fleet]
# Metric and whole percentile, as limits move with calibration and percentiles with the share of
# slow pods, without end; and whether the search began anywhere.
_Kind = tuple[LatencyMetric | None, int, bool]


class Frontier:
    """R_k(n) of one prepared model.

    Results are kept. A kept result differs from a new one by no more than the accuracy of a search,
    0.02 % of the rate, or 0.2 % if a percentile jumps. previous: the frontier of a similar mix,
    whose results start the searches. moved_ratio: how far the mix has moved since; a finite one
    lets those results bound the ones of this mix.
    """

    __slots__ = (
        "_full_batches",
        "_held",
        "_points",
        "_unloaded",
        "counts",
        "crossings",
        "kept",
        "model",
    )

    def __init__(
        self,
        model: LatencyModel,
        previous: "Frontier | None" = None,
        moved_ratio: float = math.inf,
    ) -> None:
        self.model = model
        self.crossings: dict[Row, Crossing] = {}
        self.kept: KeptCrossings = (
            KeptCrossings() if previous is None else previous.kept.moved(moved_ratio)
        )
        self.counts: dict[_Kind, int | None] = {} if previous is None else dict(previous.counts)
        self._held: dict[Row, float] = {}
        self._points: dict[tuple[Fleet, int], Prediction] = {}
        self._unloaded: dict[tuple[LatencyMetric, float], float] = {}
        self._full_batches: dict[tuple[float | None, int], int | None] = {}

    def greatest_rate_per_second(self, limit: Limit, fleet: Fleet) -> float:
        """R_k(n), a fleet rate: at most 95 % of saturation, 0 if an idle fleet misses the limit."""
        self.solve([(limit, fleet)])
        return self._rate(limit, fleet)

    def carried_rate_per_second(
        self, limits: Sequence[Limit], fleet: Fleet, most_per_second: float
    ) -> float:
        """Return the least R_k(n) of these limits, at most this rate.

        A limit that holds at that rate does not bind, and its own rate is not searched. One whose
        bounds say that it misses there is not looked at.
        """
        saturation = self.model.saturation_rate_per_second * fleet.engines
        most = min(most_per_second, GREATEST_UTILIZATION * saturation)
        rows = [(limit, fleet) for limit in limits]
        missed = {row for row, band in self._bands(rows, most).items() if band.middle < most}
        known = self.crossings.keys() | self._held.keys() | missed
        if unknown := [row for row in rows if row not in known]:
            load = self.model.predict(most, *fleet)
            self._held |= {row: most for row in unknown if row[0].of(load) <= row[0].most}
        rows = [row for row in rows if self._held.get(row, 0.0) < most]
        self.solve(rows)
        return min([most, *(self._rate(*row) for row in rows)])

    def least_counts(
        self,
        limits: Sequence[Limit],
        rate_per_second: float,
        *,
        engines_per_replica: int,
        routing: Routing,
        low: int,
        high: int,
        start: int | None = None,
    ) -> list[int | None]:
        """Least count from low to high whose R_k is this rate or more; None if there is none.

        start: where all searches begin; by default each starts where it ended last, at first at the
        count whose engines are as busy as allowed.
        """
        busiest = GREATEST_UTILIZATION * self.model.saturation_rate_per_second
        first = whole_count(rate_per_second / (busiest * engines_per_replica), high)
        kinds = {limit: (limit.metric, round(limit.percentile), start is None) for limit in limits}

        def found(open_: Iterable[Limit], *, by_bands: bool) -> dict[Limit, int | None]:
            searches = {
                limit: _CountSearch(low, high, start or self.counts.get(kinds[limit]) or first)
                for limit in open_
            }
            return self._search(
                searches, rate_per_second, engines_per_replica, routing, by_bands=by_bands
            )

        answers = found(limits, by_bands=True)
        changed = [
            limit for limit in limits if answers[limit] != self.counts.get(kinds[limit], math.nan)
        ]
        answers |= found(changed, by_bands=False)
        self.counts |= {kinds[limit]: answer for limit, answer in answers.items()}
        return [answers[limit] for limit in limits]

    def solve(self, rows: Iterable[Row]) -> None:
        """Find the unknown rates of these rows all at once, which is cheaper."""
        searches: dict[Row, CrossingSearch] = {}
        for row in rows:
            if row in self.crossings or row in searches:
                continue
            if row[0].most <= 0.0:
                self._keep(row, Crossing(0.0, None))
                continue
            searches[row] = self._begin_search(row)
        while searches:
            for row, value in self._values(searches).items():
                search = searches[row]
                search.add_value(value / row[0].most)
                if search.hopeless and self._misses_unloaded(row[0]):
                    search.ended = Crossing(0.0, None)
                if search.ended is not None:
                    self._keep(row, search.ended)
            searches = {row: one for row, one in searches.items() if one.ended is None}

    def unloaded_seconds(self, metric: LatencyMetric, percentile: float) -> float:
        """Return the percentile for requests one at a time: no fleet can be faster."""
        if (metric, percentile) not in self._unloaded:
            alone = self.model.predict(IDLE_RATE_PER_SECOND, 1, Routing.POOLED)
            self._unloaded[metric, percentile] = metric_seconds(alone, metric, percentile)
        return self._unloaded[metric, percentile]

    def full_batch(
        self, objectives: Sequence[Objective], most_sequences: int, calibration_ratio: float
    ) -> int | None:
        """Return `full_batch_of` for this model."""
        widest = max(
            (o.threshold_seconds for o in objectives if o.metric is LatencyMetric.TPOT),
            default=None,
        )
        key = None if widest is None else widest / calibration_ratio, most_sequences
        if key not in self._full_batches:
            self._full_batches[key] = full_batch_of(
                self.model.engine, objectives, most_sequences, calibration_ratio
            )
        return self._full_batches[key]

    def reading(
        self, measure: Callable[[Prediction], float], rate_per_second: float, fleet: Fleet
    ) -> float:
        """Prediction of a load, interpolated between close loads that are evaluated once."""
        utilization = rate_per_second / (self.model.saturation_rate_per_second * fleet.engines)
        if not utilization < 1.0:
            return measure(self.model.predict(rate_per_second, *fleet))
        utilization = max(utilization, LEAST_READ_UTILIZATION)
        place, share = divmod(math.log(utilization / (1.0 - utilization)), READING_STEP)
        first, second = map(measure, self._read((int(place), int(place) + 1), fleet))
        share /= READING_STEP
        if first > 0.0 and second > 0.0:
            return first * math.exp(share * math.log(second / first))
        return first + share * (second - first)

    def _read(self, places: Sequence[int], fleet: Fleet) -> list[Prediction]:
        """Return predictions at these steps."""
        lacking = [place for place in places if (fleet, place) not in self._points]
        if lacking:
            saturation = self.model.saturation_rate_per_second * fleet.engines
            made = self.model.predict_many(
                [saturation / (1.0 + math.exp(-READING_STEP * place)) for place in lacking],
                [fleet.engines] * len(lacking),
                fleet.routing,
            )
            self._points.update(zip(((fleet, place) for place in lacking), made, strict=True))
        return [self._points[fleet, place] for place in places]

    def _rate(self, limit: Limit, fleet: Fleet) -> float:
        utilization = self.crossings[limit, fleet].utilization
        return utilization * self.model.saturation_rate_per_second * fleet.engines

    def _search(
        self,
        searches: "Mapping[Limit, _CountSearch]",
        rate_per_second: float,
        engines_per_replica: int,
        routing: Routing,
        *,
        by_bands: bool,
    ) -> dict[Limit, int | None]:
        """Return the least counts; by_bands: bounds on rows are enough."""
        while open_ := {limit: one for limit, one in searches.items() if not one.ended}:
            rows = {
                (limit, count): (limit, Fleet(count * engines_per_replica, routing))
                for limit, one in open_.items()
                for count in one.trials()
            }
            bands = self._bands(rows.values(), rate_per_second) if by_bands else {}
            self.solve(row for row in rows.values() if row not in bands)
            for (limit, count), row in rows.items():
                rate = bands[row].middle if row in bands else self._rate(*row)
                open_[limit].add_count(count, rate, rate_per_second)
        return {limit: one.answer for limit, one in searches.items()}

    def _bands(self, rows: Iterable[Row], rate_per_second: float) -> dict[Row, Band]:
        """Return the bounds of rows that are not known, if this rate is not within them."""
        bands = {row: self._band(row) for row in rows if row not in self.crossings}
        return {
            row: band
            for row, band in bands.items()
            if band is not None and not band.low < rate_per_second <= band.high
        }

    def _band(self, row: Row) -> Band | None:
        """Return the fleet rates between which this row lies; None if nothing alike is kept."""
        limit, fleet = row
        band = self.kept.band((limit.metric, fleet.routing), fleet.engines, *limit[1:])
        if band is None or (not band.high and not self._misses_unloaded(limit)):
            return None
        saturation = self.model.saturation_rate_per_second * fleet.engines
        return band.scaled(saturation, GREATEST_UTILIZATION * saturation)

    def _keep(self, row: Row, found: Crossing) -> None:
        (metric, percentile, most), fleet = row
        self.crossings[row] = found
        self.kept.add((metric, fleet.routing), fleet.engines, percentile, most, found)

    def _begin_search(self, row: Row) -> CrossingSearch:
        """Return a search that begins at the crossing of the nearest fleet, else anywhere."""
        limit, fleet = row
        near = self.kept.nearest((limit.metric, fleet.routing), fleet.engines, *limit[1:])
        if near is None:
            return CrossingSearch(GREATEST_UTILIZATION)
        return CrossingSearch(GREATEST_UTILIZATION, near.found, math.log(limit.most / near.most))

    def _values(self, searches: Mapping[Row, CrossingSearch]) -> dict[Row, float]:
        """Return the percentile of each row where its search evaluates next."""
        saturation = self.model.saturation_rate_per_second
        values: dict[Row, float] = {}
        for routing in Routing:
            asked = {
                row: (one.utilization * saturation * row[1].engines, row[1].engines)
                for row, one in searches.items()
                if row[1].routing is routing
            }
            loads = sorted(set(asked.values()))
            if not loads:
                continue
            rates, engines = zip(*loads, strict=True)
            made = dict(zip(loads, self.model.predict_many(rates, engines, routing), strict=True))
            for metric in {limit.metric for limit, _ in asked if limit.metric is not None}:
                wanted = {load for (limit, _), load in asked.items() if limit.metric is metric}
                prepare([made[load] for load in sorted(wanted)], metric)
            values |= {row: row[0].of(made[load]) for row, load in asked.items()}
        return values

    def _misses_unloaded(self, limit: Limit) -> bool:
        if limit.metric is None:
            return False
        return not self.unloaded_seconds(limit.metric, limit.percentile) <= limit.most


class _CountSearch:
    """The search for the least sufficient count, a few counts at a time."""

    __slots__ = ("_failing", "_found", "_guess", "_high", "_rounds", "hopeless")

    def __init__(self, low: int, high: int, start: int) -> None:
        self._failing, self._found, self._high = low - 1, high + 1, high
        self._guess = min(max(start, low), high)
        self._rounds = 0
        self.hopeless = low > high

    @property
    def ended(self) -> bool:
        """Whether the answer is known."""
        return self.hopeless or self._found - self._failing <= 1

    @property
    def answer(self) -> int | None:
        """The least sufficient count; None if there is none."""
        return None if self.hopeless or self._found > self._high else self._found

    def trials(self) -> list[int]:
        """The count expected to suffice, and one fewer."""
        self._rounds += 1
        return [count for count in (self._guess - 1, self._guess) if count > self._failing]

    def add_count(self, count: int, greatest_per_second: float, rate_per_second: float) -> None:
        """Add the rate of a count: 0 if no count carries anything."""
        if greatest_per_second <= 0.0:
            self.hopeless = True
            return
        if greatest_per_second * (1.0 + ROUNDING) >= rate_per_second:
            self._found = min(self._found, count)
        else:
            self._failing = max(self._failing, count)
        guess = rate_per_second * count / greatest_per_second
        if self._rounds > GUESSED_ROUNDS:
            guess = (self._failing + self._found) / 2
        self._guess = whole_count(guess, self._found - 1)
        self._guess = max(self._guess, self._failing + 1)


def whole_count(replicas: float, largest: int) -> int:
    """Return a whole number of replicas, at least 1; a quotient such as 3.0000000001 is 3.

    Source: ⌈λ/(ρ*·μ)⌉, Machine Learning Systems (V. J. Reddi), "Serving and Systems Tradeoffs".
    """
    if not replicas < largest:
        return largest
    return max(1, math.ceil(replicas - ROUNDING))
