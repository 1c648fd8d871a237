"""Prints the models beside an independent simulation, on a sample of the grid.

The sample: three cards, work ratio 0.1 to 0.9, Poisson and bursty arrivals, least-loaded and random
routing, 1 to 16 replicas, prefix-cache shares, token budgets, KV-bound and not, and saturation.
Errors are of the model against the simulation, in percent; ± is the spread over seeds of the
simulated TTFT and TPOT p99. A line for each target follows; groups outside the targets say why.
First the laws of known engines beside measured kernels, see `tests/silicon/beside.py`.
Run with `make validate`; words as arguments (`make validate ROWS="burst M=512"`) choose the rows
whose label has one of them.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tests.silicon.beside import text
from tests.validation.grid import PERCENTILES, Case, Comparison, Lengths, compare
from tests.validation.sample import Group, groups, saturated

_SEEDS = (1, 2, 3)
_HEADER = (
    "case                                     work  util | n      ITL   | TTFT p50    p95    p99"
    "  ±p99 | TPOT p50    p95    p99  ±p99 | latency p50  p95"
)


def label(case: Case) -> str:
    """A case in a few words."""
    words = [case.card.name, f"{case.rate_per_second:g}/s", f"x{case.replica_count}"]
    if case.replica_count > 1:
        words.append("least" if case.least_loaded else "random")
    if case.cached_ratio:
        words.append(f"cached {case.cached_ratio:g}")
    if case.budget_tokens:
        words.append(f"M={case.budget_tokens}")
    if case.burst:
        words.append(f"burst ±{case.burst[0]:g}/{case.burst[1]:g}s")
    if case.lengths is not Lengths.CONVERSATION:
        words.append(case.lengths)
    if not case.memory_known:
        words.append("no memory")
    return " ".join(words)


def chosen(group: list[Case]) -> list[Case]:
    """The cases that the command line asks for: those with one of its words, or all."""
    words = sys.argv[1:]
    return [case for case in group if not words or any(word in label(case) for word in words)]


def _error(ratio: float) -> str:
    return f"{100 * (ratio - 1):+6.1f}"


def _mean_ratio(results: list[Comparison], metric: str, percentile: float) -> float:
    return float(np.mean([result.ratio(metric, percentile) for result in results]))


def _spread(results: list[Comparison], metric: str) -> str:
    high = [float(np.percentile(getattr(r.outcome, metric), 99.0)) for r in results]
    return f"{100 * np.std(high) / np.mean(high) / np.sqrt(len(high)):5.1f}"


def row(results: list[Comparison]) -> str:
    """One line of the table, averaged over seeds."""
    prediction = results[0].prediction
    running = float(np.mean([r.running_ratio for r in results]))
    itl = float(np.mean([r.itl_ratio for r in results]))
    parts = [
        f"{label(results[0].case):40s} {prediction.work_ratio:4.2f}  {prediction.utilization:4.2f}",
        f"{_error(running)} {_error(itl)}",
    ]
    for metric in ("ttft", "tpot"):
        errors = [_error(_mean_ratio(results, metric, p)) for p in PERCENTILES]
        parts.append(" ".join(errors) + " " + _spread(results, metric))
    parts.append(" ".join(_error(_mean_ratio(results, "latency", p)) for p in (50.0, 95.0)))
    return " | ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound on the error of one figure, in percent, for some of the cases."""

    name: str
    percent: float
    error: Callable[[list[Comparison]], float]
    kv_bound: bool = False


def _percentile_error(metric: str, percentile: float) -> Callable[[list[Comparison]], float]:
    return lambda results: 100.0 * (_mean_ratio(results, metric, percentile) - 1.0)


def _running_error(results: list[Comparison]) -> float:
    return 100.0 * (float(np.mean([r.running_ratio for r in results])) - 1.0)


def _itl_error(results: list[Comparison]) -> float:
    return 100.0 * (float(np.mean([r.itl_ratio for r in results])) - 1.0)


TARGETS = (
    Target(name="E[n]", percent=3.0, error=_running_error),
    Target(name="mean ITL", percent=3.0, error=_itl_error),
    Target(name="TTFT p50", percent=7.0, error=_percentile_error("ttft", 50.0)),
    Target(name="TTFT p95", percent=7.0, error=_percentile_error("ttft", 95.0)),
    Target(name="TTFT p99", percent=12.0, error=_percentile_error("ttft", 99.0)),
    Target(name="TPOT p95", percent=10.0, error=_percentile_error("tpot", 95.0)),
    Target(name="TPOT p99", percent=12.0, error=_percentile_error("tpot", 99.0)),
    Target(
        name="TTFT p95, KV-bound",
        percent=20.0,
        error=_percentile_error("ttft", 95.0),
        kv_bound=True,
    ),
)


def verdict(name: str, percent: float, errors: dict[str, float], *, bound: bool = False) -> str:
    """One line: met or missed, how many cases meet the target, the worst, and the other misses.

    bound: more than is simulated is no miss.
    """
    missed = {case: e for case, e in errors.items() if (-e if bound else abs(e)) > percent}
    worst = max(errors, key=lambda case: -errors[case] if bound else abs(errors[case]))
    share = len(errors) - len(missed)
    limit = f"at most {percent:.0f} % low" if bound else f"within {percent:4.0f} %"
    line = (
        f"{name:20s} {limit}: {'missed' if missed else 'met':6s} "
        f"{share:3d} of {len(errors):3d}; worst {errors[worst]:+6.1f} {worst}"
    )
    others = [f"{case} {e:+.1f}" for case, e in missed.items() if case != worst]
    return line + ("; also " + ", ".join(others) if others else "")


def main() -> None:
    """Print every group, the saturation rates, and a line for each target."""
    started = time.perf_counter()
    out = sys.stdout.write
    within: dict[str, dict[str, float]] = {target.name: {} for target in TARGETS}
    bounds: dict[str, dict[str, float]] = {target.name: {} for target in TARGETS}
    ratios: list[float] = []
    out("\n".join(text()) + "\n")
    out("Model against simulation, error in percent\n" + _HEADER + "\n")
    for group in groups():
        out(_headed(group))
        for case in chosen(group.cases):
            results = [compare(_with_seed(case, seed)) for seed in _SEEDS]
            out(row(results) + "\n")
            sys.stdout.flush()
            ratios.append(results[0].prediction.work_ratio)
            for target in TARGETS:
                if not group.outside and target.kv_bound == group.kv_bound:
                    errors = bounds if group.bound else within
                    errors[target.name][label(case)] = target.error(results)
    saturation = _saturation()
    if ratios:
        out(f"-- work ratios {min(ratios):.2f} to {max(ratios):.2f}; targets, mean of the seeds\n")
    for errors in (within, bounds):
        for target in TARGETS:
            if errors[target.name]:
                one = errors[target.name]
                out(verdict(target.name, target.percent, one, bound=errors is bounds) + "\n")
    if saturation:
        out(verdict("saturation", 3.0, saturation) + "\n")
    out(f"{time.perf_counter() - started:.0f} s\n")


def _headed(group: Group) -> str:
    """Its name, and why the law is a bound there or targets do not apply."""
    lines = [f"-- {group.name}\n"]
    if group.outside:
        lines.append(f"   outside the targets: {group.outside}\n")
    if group.bound:
        lines.append(f"   a bound: {group.bound}\n")
    return "".join(lines)


def _saturation() -> dict[str, float]:
    """Errors of the saturation rates in percent, by case, printed."""
    sys.stdout.write("-- saturation, requests per second of a replica\n")
    errors: dict[str, float] = {}
    for case in chosen(saturated()):
        result = compare(case)
        departures = result.outcome.departed_per_second
        predicted = result.prediction.engine.saturation_rate_per_second
        errors[label(case)] = 100.0 * (result.saturation_ratio - 1.0)
        sys.stdout.write(
            f"{label(case):40s} model {predicted:7.3f} simulated {departures:7.3f} "
            f"{_error(result.saturation_ratio)}\n"
        )
    return errors


def _with_seed(case: Case, seed: int) -> Case:
    return Case(
        **{name: getattr(case, name) for name in Case.__slots__ if name != "seed"}, seed=seed
    )


if __name__ == "__main__":
    main()
