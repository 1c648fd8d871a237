"""The error budget: what was read of misses, what is left, and how fast it burns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from servingslo.copying import replace
from servingslo.estimation.requests.misses import Misses, Within
from servingslo.plugins import Key
from servingslo.policy.inputs import Observation, Targets

# Source: Google, The Site Reliability Workbook, chapter 5, table 5-8: pairs of a long window and a
# short one, which ends an alert soon after the trouble ends.
FAST_BURN_SECONDS, SLOW_BURN_SECONDS = 3600.0, 259_200.0
BURN_SECONDS = (300.0, 1800.0, FAST_BURN_SECONDS, 21_600.0, SLOW_BURN_SECONDS)
"""Lengths of the windows whose burn rates are reported."""
# Readings come about every minute; an older one says nothing about the present.
OLDEST_READING_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMisses:
    """Misses of the last `seconds` seconds. most: the pessimistic end, which spends the budget."""

    seconds: float
    requests: float
    least: float
    most: float
    classes: Mapping[str, Misses] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReading:
    """The counters up to a time, in seconds since the epoch.

    windows: of the burn rates; the last one is the budget's own. covered_ratio: share of the
    budget's window for which there is data.
    """

    time_seconds: float
    windows: tuple[WindowMisses, ...]
    covered_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRate:
    """How many times as fast as allowed the budget was spent over a recent period."""

    seconds: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """The error budget over its window.

    remaining_ratio: of the budget, if every miss is of another request; negative when overspent.
    remaining_most_ratio: if as many misses as possible are of the same requests. covered_ratio:
    share of the window with any data.
    """

    target_ratio: float
    window_seconds: float
    remaining_ratio: float
    remaining_most_ratio: float
    covered_ratio: float
    burn_rates: tuple[BurnRate, ...] = ()


READING: Key[BudgetReading] = Key("error_budget", BudgetReading)
REPORT: Key[BudgetReport] = Key(READING.name, BudgetReport)
# What is stated, the budget's window in seconds; of a class of requests, the ratio that is left.
WINDOW: Key[float] = Key(READING.name, float)
LEFT = WINDOW


def burn_rate(missed_ratio: float, target_ratio: float) -> float:
    """How many times faster than allowed the budget is spent: missed share / (1 - target).

    Source: Google, The Site Reliability Workbook (2018), chapter 5, burn rate.
    """
    return missed_ratio / (1.0 - target_ratio)


def budget_left_ratio(missed_count: float, request_count: float, target_ratio: float) -> float:
    """The share of a window's budget left; negative when overspent, 1 without requests.

    Source: Google, Site Reliability Engineering (2016), chapter 3, error budgets.
    """
    budget = (1.0 - target_ratio) * request_count
    return 1.0 - missed_count / budget if budget > 0 else 1.0


def budget_report(targets: Targets, observation: Observation) -> BudgetReport | None:
    """The budget by its pessimistic bound; None if none is requested or nothing is known."""
    window, reading = WINDOW.of(targets.features), READING.of(observation.features)
    if window is None or reading is None or not reading.windows:
        return None
    age_seconds = observation.time_seconds - reading.time_seconds
    if age_seconds > OLDEST_READING_SECONDS or reading.covered_ratio <= 0:
        return None
    target, whole = targets.promised_share_ratio, reading.windows[-1]
    return BudgetReport(
        target_ratio=target,
        window_seconds=window,
        remaining_ratio=budget_left_ratio(whole.most, whole.requests, target),
        remaining_most_ratio=budget_left_ratio(whole.least, whole.requests, target),
        covered_ratio=reading.covered_ratio,
        burn_rates=tuple(
            BurnRate(seconds=one.seconds, rate=burn_rate(one.most / one.requests, target))
            for one in reading.windows[:-1]
            if one.requests > 0
        ),
    )


def within_threshold(counts: Sequence[tuple[float, float]], threshold_seconds: float) -> Within:
    """Return requests within a threshold, from cumulative counts in any order.

    counts: pairs (upper edge, requests up to it). The open bucket's edge is infinite; all zero
    without one.
    """
    total = next((count for edge, count in counts if edge == float("inf")), 0.0)
    below = [count for edge, count in counts if edge <= threshold_seconds]
    above = [count for edge, count in counts if edge >= threshold_seconds]
    least = min(max(below, default=0.0), total)
    most = min(max(min(above, default=total), least), total)
    return Within(requests=total, least=least, most=most)


def of_classes(
    served: Misses, counts: Mapping[str, tuple[float, float]], ordering: Collection[str]
) -> Misses:
    """Return the misses of the ordering classes together, and those of each class.

    served: of all requests that the engines ended, which do not tell classes apart: each class has
    its part. counts: offered and refused requests of each class; unchanged if they are unknown.
    """
    if not counts:
        return served
    least, most = (
        (served.least / served.requests, served.most / served.requests)
        if served.requests
        else (0.0, 0.0)
    )
    classes = {
        name: Misses(
            requests=offered,
            least=refused + (offered - refused) * least,
            most=refused + (offered - refused) * most,
        )
        for name, (offered, refused) in counts.items()
    }
    return replace(_sum(classes[name] for name in ordering if name in classes), classes=classes)


def _sum(parts: Iterable[Misses]) -> Misses:
    found = tuple(parts)
    return Misses(
        requests=sum(part.requests for part in found),
        least=sum(part.least for part in found),
        most=sum(part.most for part in found),
    )


def over(seconds: float, parts: Iterable[Misses]) -> WindowMisses:
    """Return the misses of a window, from those of its parts."""
    found = tuple(parts)
    whole = _sum(found)
    names = dict.fromkeys(name for part in found for name in part.classes)
    return WindowMisses(
        seconds=seconds,
        requests=whole.requests,
        least=whole.least,
        most=whole.most,
        classes={
            name: _sum(part.classes[name] for part in found if name in part.classes)
            for name in names
        },
    )
