"""Pinball loss of the forecast beside last value and Holt–Winters, and what it does after a step.

Run as `python -m tests.benchmarks.forecast [seeds]`; the tables of docs/lab/findings.md.
Rates are counted in windows of 15 s; outcomes are true rates, for the trace its mean over 75 s. The
two others are given the quantiles of their own last 60 errors. The last table is of a day after two
weeks of history (`seasons`).
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.benchmarks.seasons import season_rows

from servingslo.estimation.forecast.demand import Forecast, ForecastState, forecast, observe
from servingslo.estimation.forecast.rate_filters import RateWindow
from servingslo_lab.sim.traces.trace import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_llm_2023_conversation.csv"
WINDOW_SECONDS = 15.0
WINDOWS = 240
PROBABILITIES = (0.5, 0.9, 0.95, 0.975)
LEADS_SECONDS = (90.0, 240.0)
FIRST_WINDOW, WINDOW_STEP, ERROR_WINDOWS = 20, 3, 60
MIDDLES = (np.arange(WINDOWS) + 0.5) * WINDOW_SECONDS
DEFAULT_SEEDS = 3
# A lead of the planner: a cold start of 90 s, a tick and a scrape.
PLANNED_LEAD_SECONDS, PLANNED_PROBABILITY = 120.0, 0.9
Rates = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Rates per second as measured in each window, and the true ones."""

    measured: Rates
    truth: Rates


def main(seeds: int) -> None:
    """Print both tables."""
    columns = " | ".join(
        f"{who}{lead}" for lead in (", 90 s", ", 240 s") for who in ("ours", "last value", "H-W")
    )
    _row("demand", [columns])
    _row("---", ["---"] * 6)
    relative: list[list[float]] = []
    for name in DEMANDS:
        found = np.mean([losses(demand) for demand in demands(name, seeds)], axis=0)
        _row(name, [f"{value:.3g}" for value in found])
        relative.append([*(found[:3] / found[1]), *(found[3:] / found[4])])
    means = np.exp(np.mean(np.log(relative), axis=0))
    _row("geometric mean, relative to last value", [f"{value:.2f}" for value in means])
    sys.stdout.write("\n")
    _row("after", ["highest p90", "highest mean", "p90 a minute later"])
    _row("---", ["---"] * 3)
    for name, (rise_seconds, factor) in STEPS.items():
        _row(name, [f"{value:.2f}" for value in after_step(rise_seconds, factor, seeds)])
    sys.stdout.write("\n")
    for name, cells in season_rows(seeds):
        _row(name, cells)


def _row(name: str, cells: list[str]) -> None:
    sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")
    sys.stdout.flush()


def demands(name: str, seeds: int) -> Iterator[Demand]:
    """One demand for each seed."""
    for seed in range(1, seeds + 1):
        yield DEMANDS[name](np.random.default_rng(seed))


def losses(demand: Demand) -> list[float]:
    """Mean pinball loss of ours, last value and Holt–Winters at each lead."""
    ours = _forecasts(demand.measured)
    return [
        loss
        for lead in LEADS_SECONDS
        for loss in (
            _ours(demand, ours, lead),
            _by_errors(demand, demand.measured, lead),
            _by_errors(demand, _holt_winters(demand.measured, int(lead / WINDOW_SECONDS)), lead),
        )
    ]


def after_step(rise_seconds: float, factor: float, seeds: int) -> list[float]:
    """Highest p90 and mean at the planner's lead over the new rate, and p90 one minute later."""
    found = []
    for seed in range(1, seeds + 1):
        low, at = 10.0, 900.0
        truth = np.interp(
            MIDDLES, [0.0, at, at + rise_seconds, 3600.0], [low, low, factor * low, factor * low]
        )
        made = _forecasts(_counted(truth, np.random.default_rng(seed)))
        begun, risen = int(at / WINDOW_SECONDS), int((at + rise_seconds) / WINDOW_SECONDS)
        near = made[begun : risen + 8]
        quantiles = [f.quantile_per_second(PLANNED_LEAD_SECONDS, PLANNED_PROBABILITY) for f in near]
        means = [f.mean_per_second(PLANNED_LEAD_SECONDS) for f in near]
        later = made[risen + 4].quantile_per_second(PLANNED_LEAD_SECONDS, PLANNED_PROBABILITY)
        found.append([max(quantiles), max(means), later])
    mean: list[float] = (np.mean(found, axis=0) / (factor * 10.0)).tolist()
    return mean


def _forecasts(rates: Rates) -> list[Forecast]:
    state, found = ForecastState(), []
    for number, rate in enumerate(rates):
        window = RateWindow(rate_per_second=float(rate), seconds=WINDOW_SECONDS)
        state = observe(state, window, number * WINDOW_SECONDS)
        found.append(forecast(state, number * WINDOW_SECONDS))
    return found


def _scored(lead: float) -> range:
    return range(FIRST_WINDOW, WINDOWS - int(lead / WINDOW_SECONDS), WINDOW_STEP)


def _pinball(probability: float, outcome: float, predicted: float) -> float:
    error = outcome - predicted
    return max(probability * error, (probability - 1.0) * error)


def _ours(demand: Demand, made: list[Forecast], lead: float) -> float:
    ahead = int(lead / WINDOW_SECONDS)
    return float(np.mean([
        _pinball(p, float(demand.truth[now + ahead]), made[now].quantile_per_second(lead, p))
        for now in _scored(lead)
        for p in PROBABILITIES
    ]))  # fmt: skip


def _by_errors(demand: Demand, points: Rates, lead: float) -> float:
    """The loss of point forecasts with the quantiles of their own errors."""
    ahead, total = int(lead / WINDOW_SECONDS), []
    for now in _scored(lead):
        first = max(0, now - ERROR_WINDOWS)
        errors = demand.measured[first + ahead : now + 1] - points[first : now + 1 - ahead]
        for p in PROBABILITIES:
            shift = float(np.quantile(errors, p)) if len(errors) else 0.0
            predicted = max(float(points[now]) + shift, 0.0)
            total.append(_pinball(p, float(demand.truth[now + ahead]), predicted))
    return float(np.mean(total))


def _holt_winters(rates: Rates, ahead: int) -> Rates:
    """Additive damped trend, no season; α 0.5, β 0.1, φ 0.95."""
    level, trend, found = float(rates[0]), 0.0, [float(rates[0])]
    steps = sum(0.95**k for k in range(1, ahead + 1))
    for rate in rates[1:]:
        new = 0.5 * float(rate) + 0.5 * (level + 0.95 * trend)
        trend = 0.1 * (new - level) + 0.9 * 0.95 * trend
        level = new
        found.append(max(level + trend * steps, 0.0))
    return np.array(found)


def _counted(truth: Rates, rng: np.random.Generator) -> Rates:
    counted: Rates = rng.poisson(truth * WINDOW_SECONDS) / WINDOW_SECONDS
    return counted


def _course(times: list[float], rates: list[float]) -> Callable[[np.random.Generator], Demand]:
    def draw(rng: np.random.Generator) -> Demand:
        truth = np.interp(MIDDLES, times, rates)
        return Demand(measured=_counted(truth, rng), truth=truth)

    return draw


def _trace(copies: int) -> Callable[[np.random.Generator], Demand]:
    def draw(rng: np.random.Generator) -> Demand:
        arrivals = read_trace(TRACE).arrival_seconds
        moved = [arrivals] + [
            np.mod(arrivals + rng.uniform(-20.0, 20.0, len(arrivals)), 3600.0)
            for _ in range(copies - 1)
        ]
        counts = np.histogram(np.concatenate(moved), bins=WINDOWS, range=(0.0, 3600.0))[0]
        smooth = np.convolve(np.pad(counts, 2, mode="edge"), np.ones(5) / 5, "valid")
        return Demand(measured=counts / WINDOW_SECONDS, truth=smooth / WINDOW_SECONDS)

    return draw


def _sine(rng: np.random.Generator) -> Demand:
    truth = 60.0 * (1.0 + 0.5 * np.sin(2.0 * np.pi * MIDDLES / 3600.0))
    return Demand(measured=_counted(truth, rng), truth=truth)


def _bursts(rng: np.random.Generator) -> Demand:
    high, truth = False, []
    for _ in MIDDLES:
        high ^= bool(rng.random() < WINDOW_SECONDS / 120.0)
        truth.append(80.0 if high else 40.0)
    return Demand(measured=_counted(np.array(truth), rng), truth=np.array(truth))


def _walk(rng: np.random.Generator) -> Demand:
    truth = 40.0 * np.exp(np.cumsum(rng.normal(0.0, 0.02, WINDOWS)))
    return Demand(measured=_counted(truth, rng), truth=truth)


DEMANDS: dict[str, Callable[[np.random.Generator], Demand]] = {
    "Azure trace": _trace(1),
    "Azure trace × 20": _trace(20),
    "Poisson 60/s": _course([0, 3600], [60, 60]),
    "Poisson 0.5/s": _course([0, 3600], [0.5, 0.5]),
    "ramp 20 → 180 → 20/s": _course([0, 600, 1800, 2100, 2700, 3600], [20, 20, 180, 180, 20, 20]),
    "step 30 → 75 → 30/s": _course([0, 1200, 1201, 2400, 2401, 3600], [30, 30, 75, 75, 30, 30]),
    "crowd 18 → 180/s in 60 s": _course(
        [0, 1200, 1260, 2100, 2160, 3600], [18, 18, 180, 180, 18, 18]
    ),
    "sine, period 1 h": _sine,
    "bursts 40/80/s, 2 min each": _bursts,
    "random walk": _walk,
}
STEPS = {
    "×2 at once": (1.0, 2.0),
    "×4 at once": (1.0, 4.0),
    "×4 within a minute": (60.0, 4.0),
    "×10 within a minute": (60.0, 10.0),
}

if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SEEDS)
