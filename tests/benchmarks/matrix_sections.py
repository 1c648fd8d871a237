"""Tables of the benchmark that compare several scenarios, as rows under their head."""

from collections.abc import Sequence
from pathlib import Path

import yaml
from tests.benchmarks.matrix import MINE
from tests.benchmarks.matrix_day import PERCENTILES, burn
from tests.benchmarks.matrix_findings import Findings, strongest
from tests.benchmarks.matrix_offices import morning_share
from tests.benchmarks.matrix_parts import PARTS, scenarios
from tests.benchmarks.matrix_search import SEED
from tests.benchmarks.matrix_tables import Table, brief, pair_text

from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import FORESIGHT, ORACLE, OURS
from servingslo_lab.sim.scenario import Scenario
from servingslo_lab.sim.scoring import Score
from servingslo_lab.sim.summary import PolicySummary, beats

REFERENCE = Path(__file__).with_name("reference.yaml")


def settings(findings: Findings) -> Table:
    """Whether any setting of any rule's grid beats ours on the seed of the search."""
    rows = [["trace", "policy", "searched settings that beat it"]]
    for where in findings.plan.scenarios:
        for name in MINE:
            one = findings.get(where.name, name)
            if one is not None:
                rows.append([where.name, name, _beating_settings(findings, where, one)])
    return rows


def _beating_settings(findings: Findings, where: Scenario, one: PolicySummary) -> str:
    mine = next(
        (
            o.score
            for o in findings.ours_searched
            if (o.scenario, o.policy) == (where.name, one.policy)
        ),
        None,
    )
    if mine is None:
        return "not searched"
    better = [
        s
        for s in findings.settings(where.name)
        if beats(s.share_ratio, s.replica_hours, mine.share_ratio, mine.replica_hours)
    ]
    text = f"none on seed {SEED}"
    if better:
        first = min(better, key=lambda s: s.replica_hours)
        theirs = pair_text(first.share_ratio, first.relative_cost)
        text = f"{len(better)} on seed {SEED}: {first.policy} {theirs}, ours {_score_text(mine)}"
    return f"{text}; {beating_near(findings.near_settings(where), one)}"


def beating_near(near: Sequence[PolicySummary], one: PolicySummary) -> str:
    """Of the settings that came near ours in the search, those that beat it on these seeds."""
    if not near:
        return "no near ones"
    better = [
        s
        for s in near
        if beats(
            s.share_ratio.mean, s.replica_hours.mean,
            one.share_ratio.mean, one.replica_hours.mean,
        )
    ]  # fmt: skip
    if better:
        return f"{len(better)} of {len(near)} near ones: " + ", ".join(
            f"{s.policy} {brief(s)}" for s in better
        )
    best = max(near, key=lambda s: s.share_ratio.mean)
    return f"none of {len(near)} near ones, {best.policy} {brief(best)}"


def _score_text(score: Score | None) -> str:
    return "-" if score is None else pair_text(score.share_ratio, score.relative_cost)


def bounds(findings: Findings) -> Table:
    """How far everything may be from the best that there can be."""
    rows = [["trace", "bound, replica-hours", ORACLE, FORESIGHT, *MINE, "strongest other"]]
    for where in findings.plan.scenarios:
        if findings.get(where.name, ORACLE) is None:
            continue
        least = findings.bounds[where.name].mean
        best = strongest(findings.by_scenario[where.name])
        rows.append([
            where.name,
            f"{least:.2f}",
            *(_over(findings.get(where.name, name), least) for name in (ORACLE, FORESIGHT, *MINE)),
            "-" if best is None else f"{_over(best, least)} {best.policy}",
        ])  # fmt: skip
    return rows


def gap(findings: Findings) -> Table:
    """Where the oracle's gap to the bound comes from; the three factors make the whole.

    Percentiles: what a large fleet needs at steady demand, found by trying, over the bound. Whole
    replicas: the same in whole replicas in every minute. Rest: the oracle over that.
    """
    rows = [["trace", "oracle over bound", "percentiles", "whole replicas", "rest"]]
    for where in findings.plan.scenarios:
        oracle = findings.get(where.name, ORACLE)
        if oracle is None:
            continue
        gaps, least = findings.gaps[where.name], findings.bounds[where.name].mean
        fluid = sum(gap.fluid_hours for gap in gaps) / len(gaps)
        whole = sum(gap.whole_hours for gap in gaps) / len(gaps)
        hours = oracle.replica_hours.mean
        factors = (hours / least, fluid / least, whole / fluid, hours / whole)
        rows.append([where.name, *(f"{factor:.2f}" for factor in factors)])
    return rows


def another_simulator(findings: Findings) -> Table:
    """The same rows by a simulator that was written independently: here / there."""
    known = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    shared = [name for name in known["scenarios"] if name in findings.by_scenario]
    hours = dict(zip(known["scenarios"], known["oracle_hours"], strict=True))
    rows = [
        ["policy", *shared],
        ["oracle, replica-hours", *(_hours(findings, name, hours[name]) for name in shared)],
    ]
    for policy, values in known["rows"].items():
        there = dict(zip(known["scenarios"], values, strict=True))
        rows.append([policy, *(_pair(findings.get(name, policy), there[name]) for name in shared)])
    return rows


def _hours(findings: Findings, where: str, there: float) -> str:
    here = findings.get(where, ORACLE)
    return "-" if here is None else f"{here.replica_hours.mean:.2f} / {there:.2f}"


def _pair(here: PolicySummary | None, there: str) -> str:
    share, cost = map(float, there.split("@"))
    return f"{brief(here)} / {share:g} @ {cost:.2f}"


def _over(one: PolicySummary | None, hours: float) -> str:
    return "-" if one is None else f"{one.replica_hours.mean / hours:.2f}"


def parts(findings: Findings) -> Table:
    """The planner without each of its parts: share in SLO in % @ cost over the oracle's."""
    seeds = sorted({o.seed for o in findings.without})
    where = [one.name for one in scenarios()]
    rows = [
        ["part", *where],
        ["all parts", *(_mean(findings.whole, name, OURS, seeds) for name in where)],
    ]
    for part in PARTS:
        label = f"without {part}"
        rows.append([label, *(_mean(findings.without, name, label, seeds) for name in where)])
    return rows


def _mean(outcomes: Sequence[Outcome], where: str, policy: str, seeds: Sequence[int]) -> str:
    found = [
        o.score
        for o in outcomes
        if (o.scenario, o.policy) == (where, policy) and o.seed in seeds and o.score is not None
    ]
    costs = [score.relative_cost for score in found if score.relative_cost is not None]
    if not found or len(costs) < len(found):
        return "-"
    share = sum(score.share_ratio for score in found) / len(found)
    text: str = pair_text(share, sum(costs) / len(costs))
    return text


def days(findings: Findings) -> Table:
    """Error budgets over a day; spent: misses over the budget."""
    head = ["target, %", "in SLO, %", "budget spent", "replica-hours", "the oracle's",
            "over oracle", "oracle over bound", "actions/h", "worst minute, %"]  # fmt: skip
    return [head, *(_day_row(findings, percentile) for percentile in PERCENTILES)]


def _day_row(findings: Findings, percentile: float) -> list[str]:
    named = [o for o in findings.days if o.scenario == f"day, {percentile:g} %"]
    mine = [o for o in named if o.policy == OURS]
    scores = [o.score for o in mine if o.score is not None]
    oracles = [o.score for o in named if o.policy == ORACLE and o.score is not None]
    if not scores or not oracles:
        return [f"{percentile:g}", *("-" * 8)]
    spent = [burn(o, percentile) or 0.0 for o in mine]
    hours = sum(s.replica_hours for s in scores) / len(scores)
    least = sum(s.replica_hours for s in oracles) / len(oracles)
    return [
        f"{percentile:g}",
        f"{100 * sum(s.share_ratio for s in scores) / len(scores):.2f}",
        f"{sum(spent) / len(spent):.2f}",
        f"{hours:.1f}",
        f"{least:.1f}",
        f"{hours / least:.2f}",
        f"{least / findings.day_bounds[percentile].mean:.2f}",
        f"{sum(s.actions_per_hour for s in scores) / len(scores):.0f}",
        f"{100 * min(s.worst_minute_ratio for s in scores):.1f}",
    ]


def offices(findings: Findings) -> Table:
    """Days with office hours, with the past and without it."""
    rows = [["policy", "in SLO, %", "mornings, %", "over oracle", "replica-hours", "actions/h",
             "worst minute, %"]]  # fmt: skip
    for policy in dict.fromkeys(o.policy for o in findings.offices):
        found = [o for o in findings.offices if o.policy == policy]
        scores = [o.score for o in found if o.score is not None]
        mornings = [share for share in map(morning_share, found) if share is not None]
        if len(scores) < len(found) or not mornings:
            rows.append([policy, *("-" * 6)])
            continue
        rows.append([
            policy,
            f"{100 * _average([s.share_ratio for s in scores]):.2f}",
            f"{100 * _average(mornings):.2f}",
            f"{_average([s.relative_cost or 0.0 for s in scores]):.2f}",
            f"{_average([s.replica_hours for s in scores]):.1f}",
            f"{_average([s.actions_per_hour for s in scores]):.1f}",
            f"{100 * min(s.worst_minute_ratio for s in scores):.1f}",
        ])  # fmt: skip
    return rows


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
