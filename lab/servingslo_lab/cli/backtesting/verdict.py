"""Whether the planner kept the target, where it lost it, and what would have kept it, in words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servingslo.units import format_duration
from servingslo_lab.sim.outcome import Outcome, Timeline
from servingslo_lab.sim.policies import STATIC, is_ours
from servingslo_lab.sim.scenario import Scenario
from servingslo_lab.sim.summary import PolicySummary

_MINUTE_SECONDS = 60
# Arrivals before a loss are the mean of so many minutes: longer than a cold start, shorter than
# the rise of a morning.
_BEFORE_MINUTES = 5
# A rise below this is no step: twice the five per cent by which a minute's count of 400 requests,
# the least that a step is told from, varies by chance.
_STEP_RATIO = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """Consecutive minutes of one run below the target, end not included, and their misses."""

    outcome: Outcome
    line: Timeline
    start: int
    end: int
    misses: float


def verdict(
    scenario: Scenario, outcomes: Sequence[Outcome], policies: Sequence[PolicySummary]
) -> tuple[str, ...]:
    """A sentence for each policy of ours and one for the cheapest of the others; plain text."""
    target = scenario.objectives.share
    found: list[str] = []
    for one in (p for p in policies if is_ours(p.policy)):
        kept = one.share_ratio.mean >= target
        relative = "" if one.relative_cost is None else f", {one.relative_cost.mean:.2f} × oracle"
        found.append(
            f"{one.policy} {'kept' if kept else 'missed'} the target: {_price(one, relative)}."
        )
        if kept:
            continue
        if scenario.bound is None and any(o.policy == STATIC and o.score is None for o in outcomes):
            found.append("No fixed count keeps it: a threshold is below what one engine can do.")
            continue
        found += _reason(scenario, [o for o in outcomes if o.policy == one.policy])
        found.append(_remedy(scenario, outcomes, policies, one))
    others = [p for p in policies if not is_ours(p.policy) and not p.in_hindsight]
    good = [p for p in others if p.share_ratio.mean >= target]
    if good:
        best = min(good, key=lambda p: p.replica_hours.mean)
        found.append(f"Cheapest other at the target: {best.policy}, {_price(best)}.")
    elif others:
        found.append("No other autoscaler kept the target.")
    return tuple(found)


def _price(one: PolicySummary, more: str = "") -> str:
    """'90.15 % in SLO for 1.35 replica-hours ($5.41)'."""
    return (
        f"{100 * one.share_ratio.mean:.2f} % in SLO for {one.replica_hours.mean:.2f} "
        f"replica-hours (${one.dollars.mean:.2f}{more})"
    )


def _reason(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Where most of the misses were, and what happened there."""
    losses = [loss for o in outcomes for loss in _losses(o, scenario.objectives.share)]
    if not losses:
        return
    worst = max(losses, key=lambda loss: loss.misses)
    all_misses = sum(_misses(worst.line, 0, len(worst.line.share_ratio)))
    seed = f" of seed {worst.outcome.seed}" if len(outcomes) > 1 else ""
    minutes = f"minutes {worst.start} to {worst.end - 1}"
    if worst.end - worst.start == 1:
        minutes = f"minute {worst.start}"
    yield (
        f"{100 * worst.misses / all_misses:.0f} % of the misses{seed} are in {minutes}: "
        f"{_cause(scenario, worst)}."
    )


def _losses(outcome: Outcome, target: float) -> Iterator[_Loss]:
    line = outcome.timeline
    if line is None:
        return
    start: int | None = None
    for minute, share in enumerate((*line.share_ratio, 1.0)):
        below = share is not None and share < target
        if below and start is None:
            start = minute
        elif not below and start is not None and share is not None:
            misses = sum(_misses(line, start, minute))
            yield _Loss(outcome=outcome, line=line, start=start, end=minute, misses=misses)
            start = None


def _misses(line: Timeline, start: int, end: int) -> Iterator[float]:
    """Requests of each minute that missed."""
    for rate, share in zip(
        line.offered_per_second[start:end], line.share_ratio[start:end], strict=True
    ):
        yield 0.0 if share is None else rate * _MINUTE_SECONDS * (1.0 - share)


def _cause(scenario: Scenario, loss: _Loss) -> str:
    """The bound, a step that outran the cold start, or the counts themselves."""
    rates = loss.line.offered_per_second
    first = max(loss.start - _BEFORE_MINUTES, 0)
    before = rates[first : loss.start]
    usual = sum(before) / len(before) if before else rates[0]
    peak = max(rates[loss.start : loss.end])
    inside = [
        (ready, desired)
        for at, ready, desired in zip(
            loss.line.tick_seconds, loss.line.ready, loss.line.desired, strict=True
        )
        if loss.start * _MINUTE_SECONDS <= at < loss.end * _MINUTE_SECONDS
    ]
    ordered = max((desired for _, desired in inside), default=None)
    ready = min((ready for ready, _ in inside), default=None)
    if scenario.pools is None and ordered is not None and ordered == scenario.bound:
        return f"the largest allowed count, {ordered}, was not enough for {peak:.3g} requests/s"
    counts = "" if ready is None else f", with {ready} ready of {ordered} ordered"
    if peak < usual * _STEP_RATIO:
        return f"arrivals were {peak:.3g}/s{counts}"
    rise = f"arrivals rose from {usual:.3g}/s to {peak:.3g}/s{counts}"
    if scenario.pools is not None:
        return rise
    cold = format_duration(round(scenario.fleet.cold_start.mean_seconds))
    return f"{rise}, and a new replica takes {cold} to start"


def _remedy(
    scenario: Scenario,
    outcomes: Sequence[Outcome],
    policies: Sequence[PolicySummary],
    one: PolicySummary,
) -> str:
    """The least fixed count that keeps the target, if it was run; else what can be promised."""
    target = scenario.objectives.share
    floor = math.floor(1000 * one.share_ratio.mean) / 10
    promise = f"As it is, {floor:g} % can be promised, not {100 * target:g} %."
    fixed = [o for o in outcomes if o.policy == STATIC]
    if one.pools or not fixed:
        return f"{promise} `--policy {STATIC}` looks for fixed counts that keep the target."
    counts = [max(o.timeline.desired) for o in fixed if o.timeline is not None]
    if len(counts) < len(fixed):
        return f"No fixed count up to the largest allowed, {scenario.bound}, keeps it. {promise}"
    static = next(p for p in policies if p.policy == STATIC)
    more = static.dollars.mean - one.dollars.mean
    return (
        f"`replicas.min: {max(counts)}` would have kept it: a fixed count of {max(counts)} has "
        f"{_price(static)}, ${abs(more):.2f} {'more' if more >= 0 else 'less'}. {promise}"
    )
