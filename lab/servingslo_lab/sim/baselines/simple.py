"""A planner in one file, as anyone would write it: what every mechanism of ours has to beat.

Level and trend of arrivals carried over the lead (Holt's double smoothing), times a quantile of the
ratios by which its own forecasts were too low, divided by what one replica carries at the
objectives' percentile, by our laws with the engine's exact card. Of the last minutes the largest
count is kept. It knows no calibration, no trust, no past and no slow pods.
Source: C. C. Holt, "Forecasting seasonals and trends by exponentially weighted moving averages"
(1957).
"""

import math
from collections import deque
from collections.abc import Iterator

from servingslo.estimation.requests.histograms import length_distribution
from servingslo.estimation.sample import EngineSample
from servingslo.models.fleet.frontier import Frontier, Limit
from servingslo.models.fleet.latency import latency_model
from servingslo.models.objectives import LatencyMetric, Routing
from servingslo.models.workload import Workload
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import View, request_rate
from servingslo_lab.sim.fleets.cluster import Wanted

DEFAULTS = {"level": 0.4, "trend": 0.15, "errors": 0.95, "down_window_seconds": 180.0}
GRID = {"trend": (0.05, 0.15, 0.3), "errors": (0.9, 0.95, 0.99),
        "down_window_seconds": (180.0, 600.0)}  # fmt: skip
# A minute of arrivals: a tick alone is half noise. Lengths of five minutes, renewed every two.
_RATE_SECONDS, _LENGTH_SECONDS, _RENEWAL_SECONDS = 60.0, 300.0, 120.0
# Errors of the last hour; before there are so many of them, none is in force.
_ERROR_SECONDS, _LEAST_ERRORS = 3600.0, 20


class Holt:
    """Level and trend of the rate, forecasts of them, and by how much those were too low."""

    def __init__(self, level: float, trend: float) -> None:
        self._weights = level, trend
        self._level: float | None = None
        self._trend = self._at = 0.0
        self._made: deque[tuple[float, float]] = deque()
        self._errors: deque[tuple[float, float]] = deque()

    def observe(self, now: float, rate: float) -> None:
        """The rate at this time, in requests per second."""
        if self._level is None:
            self._level = rate
        else:
            seconds, (by_level, by_trend) = now - self._at, self._weights
            before, expected = self._level, self._level + self._trend * seconds
            self._level = expected + by_level * (rate - expected)
            self._trend += by_trend * ((self._level - before) / seconds - self._trend)
        self._at = now
        while self._made and self._made[0][0] <= now:
            _, forecast = self._made.popleft()
            self._errors.append((now, rate / max(forecast, 1e-9)))
        while self._errors and now - self._errors[0][0] > _ERROR_SECONDS:
            self._errors.popleft()

    def forecast(self, lead_seconds: float) -> float:
        """Requests per second after the lead; not below the level, so that a fall waits."""
        level = self._level or 0.0
        found = max(level + self._trend * lead_seconds, level)
        self._made.append((self._at + lead_seconds, found))
        return found

    def margin(self, quantile: float) -> float:
        """What this share of the forecasts would have had to be multiplied by, at least 1."""
        if len(self._errors) < _LEAST_ERRORS:
            return 1.0
        ordered = sorted(error for _, error in self._errors)
        return max(ordered[math.ceil(quantile * len(ordered)) - 1], 1.0)


class Simple:
    """Forecast, margin, laws; the largest count of the last minutes."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view, self._holt = View(), Holt(parameters["level"], parameters["trend"])
        self._frontier: Frontier | None = None
        self._began, self._renewed = math.nan, -math.inf
        self._wanted: deque[tuple[float, int]] = deque()

    def decide(self, observation: Observation) -> Wanted:
        """The count for the forecast and what waits."""
        seen = self._view.add(observation)
        now, lead = seen.time_seconds, self._setting.cold_start_seconds + _RATE_SECONDS / 2
        served = request_rate(self._view, _RATE_SECONDS)
        if math.isnan(self._began):
            self._began = now
        if served is None or now - self._began < _RATE_SECONDS:
            return Wanted()
        waiting = [sum(s.values(view.waiting).values()) for s in self._view.within(_RATE_SECONDS)]
        # What came and has no first token yet is in the queue.
        self._holt.observe(now, max(served + (waiting[-1] - waiting[0]) / _RATE_SECONDS, 0.0))
        frontier = self._laws(now)
        rate = self._holt.forecast(lead) * self._holt.margin(self._parameters["errors"])
        # Until lengths fill their window, only short answers have ended.
        if frontier is None or now - self._began < _LENGTH_SECONDS:
            return Wanted()
        counts = frontier.least_counts(
            list(self._limits(frontier)), rate + waiting[-1] / lead, engines_per_replica=1,
            routing=Routing.POOLED, low=1, high=self._setting.maximum,
        )  # fmt: skip
        most = max(self._setting.maximum if one is None else one for one in counts)
        self._wanted.append((now, most))
        while now - self._wanted[0][0] > self._parameters["down_window_seconds"]:
            self._wanted.popleft()
        return Wanted(replicas=self._setting.clamped(max(count for _, count in self._wanted)))

    def _limits(self, frontier: Frontier) -> Iterator[Limit]:
        """Room for what runs, and the objectives that a request alone keeps."""
        yield Limit(None, 95.0, 0.95)
        setting = self._setting
        for metric, seconds in (
            (LatencyMetric.TTFT, setting.ttft_seconds), (LatencyMetric.TPOT, setting.tpot_seconds),
        ):  # fmt: skip
            if frontier.unloaded_seconds(metric, setting.percentile) <= seconds < math.inf:
                yield Limit(metric, setting.percentile, seconds)

    def _laws(self, now: float) -> Frontier | None:
        """The laws of the mix of the last minutes; the last ones while it ends no request."""
        if now - self._renewed < _RENEWAL_SECONDS:
            return self._frontier
        found = [
            self._view.window(read, _LENGTH_SECONDS)
            for read in (lambda e: e.prompt_tokens, lambda e: e.output_tokens)
        ]
        prompt, output = (None if one is None else length_distribution(one) for one in found)
        if prompt is None or output is None:
            return self._frontier
        cached = self._view.rate(_cached, _LENGTH_SECONDS) or 0.0
        all_tokens = (request_rate(self._view, _LENGTH_SECONDS) or 0.0) * prompt.mean_tokens
        workload = Workload(
            arrival_rate_per_second=1.0, prompt=prompt.compact(16), output=output.compact(16),
            cached_ratio=min(cached / all_tokens, 1.0) if all_tokens > 0.0 else 0.0,
        )  # fmt: skip
        self._renewed = now
        self._frontier = Frontier(
            latency_model(workload, self._setting.law, self._setting.limits), self._frontier
        )
        return self._frontier


def _cached(engine: EngineSample) -> float | None:
    return engine.cached_prompt_tokens_total
