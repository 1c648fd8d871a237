"""Sections of the benchmark's page that hold several scenarios against each other."""

from collections.abc import Iterator, Sequence

from tests.benchmarks.matrix import MINE
from tests.benchmarks.matrix_day import BUDGET_FACTOR, DAY_SEEDS, PERCENTILES, burn
from tests.benchmarks.matrix_findings import Findings, strongest
from tests.benchmarks.matrix_offices import OFFICE_SEEDS, morning_share
from tests.benchmarks.matrix_parts import PARTS, scenarios
from tests.benchmarks.matrix_search import NEAR_COST_RATIO, NEAR_SHARE_RATIO, SEED
from tests.benchmarks.matrix_tables import brief, pair_text, table

from servingslo_lab.sim.outcome import Outcome
from servingslo_lab.sim.policies import FORESIGHT, ORACLE, OURS, STATIC
from servingslo_lab.sim.scenario import Scenario
from servingslo_lab.sim.scoring import Score
from servingslo_lab.sim.summary import PolicySummary, beats


def losses(findings: Findings) -> Iterator[str]:
    """Whether ours is beaten on each trace: by a rule, by any of its settings, by a constant."""
    yield "## Where ours is beaten"
    yield ""
    yield "Beaten: another has as high a share at as low a cost, and one of them is better. Rules:"
    yield "at their defaults and tuned. Settings: every one of every rule's grid, where the search"
    yield f"ran them, against ours on the same seed {SEED}; the number that beat ours, and the"
    points, percent = 100 * NEAR_SHARE_RATIO, 100 * (NEAR_COST_RATIO - 1)
    yield "cheapest of them. A setting picked on one seed has its luck in it: near ones, within"
    yield f"{points:.0f} point and {percent:.0f} % of ours there, ran on this page's seeds too, and"
    yield "those that beat ours here are named; where none does, the one with the largest share."
    yield "Constant: the least count that meets the target, chosen in hindsight."
    yield ""
    rows = [["trace", "ours", "", "beaten by rules", "beaten by settings", "constant"]]
    for where in findings.plan.scenarios:
        for name in MINE:
            one = findings.get(where.name, name)
            if one is not None:
                rows.append([
                    where.name,
                    name,
                    brief(one),
                    _beaters(findings, where, one),
                    _beating_settings(findings, where, one),
                    _against_constant(findings, where, one),
                ])  # fmt: skip
    yield from table(rows)
    yield ""


def _beaters(findings: Findings, where: Scenario, one: PolicySummary) -> str:
    peers = [p for p in one.beaten_by if not p.startswith(OURS)]
    found = [f"{p} {brief(findings.get(where.name, p))}" for p in peers]
    return ", ".join(found) or "none"


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


def _against_constant(findings: Findings, where: Scenario, one: PolicySummary) -> str:
    static = findings.get(where.name, STATIC)
    if static is None:
        return "-"
    factor = static.replica_hours.mean / one.replica_hours.mean
    verdict = "dearer" if factor > 1.0 else "cheaper"
    if beats(
        static.share_ratio.mean, static.replica_hours.mean,
        one.share_ratio.mean, one.replica_hours.mean,
    ):  # fmt: skip
        verdict = "**beats ours**"
    return f"{brief(static)}: {verdict}"


def _score_text(score: Score | None) -> str:
    return "-" if score is None else pair_text(score.share_ratio, score.relative_cost)


def bounds(findings: Findings) -> Iterator[str]:
    """How far everything may be from the best that there can be."""
    yield "## A proven lower bound"
    yield ""
    yield "The oracle is a schedule, so a cheaper one may exist. No schedule, routing or foresight"
    yield "costs less than the engine time of the requests that must be served: what their tokens"
    yield "take by the law of a step, and their share of the fixed time of steps that are full"
    yield "(`sim/bound.py` has the argument). It leaves out waiting, percentiles, cold starts: so"
    yield "much of the gap is what no schedule can save. Replica-hours, and costs over the bound."
    yield ""
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
    yield from table(rows)
    yield ""
    yield from _gap(findings)


def _gap(findings: Findings) -> Iterator[str]:
    yield "Where the oracle's gap to the bound comes from; the three factors make the whole."
    yield "Percentiles: what a large fleet needs at steady demand, found by trying, over the bound."
    yield "Whole replicas: the same in whole replicas in every minute, over fractions of replicas."
    yield "Rest: the oracle over that. Above 1: bursts within a minute, small fleets, requests that"
    yield "outlive their minute. Below 1: the requests that may miss were in the worst minutes."
    yield ""
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
    yield from table(rows)
    yield ""


def _over(one: PolicySummary | None, hours: float) -> str:
    return "-" if one is None else f"{one.replica_hours.mean / hours:.2f}"


def parts(findings: Findings) -> Iterator[str]:
    """The planner without each of its parts."""
    seeds = sorted({o.seed for o in findings.without})
    yield "## What each part is worth"
    yield ""
    yield f"`{OURS}` (replicas only) with one part taken out, share in SLO in % @ cost over the"
    yield f"oracle's, mean over seeds {', '.join(map(str, seeds))}."
    yield ""
    where = [one.name for one in scenarios()]
    rows = [["", *where], ["all parts", *(_mean(findings.whole, n, OURS, seeds) for n in where)]]
    for part in PARTS:
        label = f"without {part}"
        rows.append([label, *(_mean(findings.without, name, label, seeds) for name in where)])
    yield from table(rows)
    yield ""
    for part, (_, meaning) in PARTS.items():
        yield f"- without {part}: {meaning}."
    yield ""


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


def days(findings: Findings) -> Iterator[str]:
    """Error budgets over a day."""
    yield "## Error budgets over a day"
    yield ""
    yield "One resource, three percentiles for both of its objectives, on a day of the Azure"
    yield "conversation trace with a day's wave: small card, 5 to 22 requests a second, 1.2 million"
    yield f"in all, seed {', '.join(map(str, DAY_SEEDS))}. Spent: misses over what the budget"
    yield f"allows, at most {BUDGET_FACTOR:g} promised. Every target has its own oracle."
    yield ""
    head = ["target, %", "in SLO, %", "budget spent", "replica-hours", "the oracle's",
            "over oracle", "oracle over bound", "actions/h", "worst minute, %"]  # fmt: skip
    yield from table([head, *(_day_row(findings, percentile) for percentile in PERCENTILES)])
    yield ""


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


def seasons(findings: Findings) -> Iterator[str]:
    """Days with office hours, with the past and without it."""
    yield "## Days with office hours"
    yield ""
    yield "What past rates are worth. Sunday evening to Tuesday noon on the small card, a request a"
    yield "second at night and 16 in office hours, which begin within six minutes around nine; each"
    yield "day has a level of its own. Two weeks of history: the planner is given past rates as the"
    yield "operator reads them from Prometheus (five-minute bins, up to fourteen days, read again"
    yield "after a day). No history: Prometheus has just begun. Others: the strongest on slow"
    yield f"traces. Means over seeds {', '.join(map(str, OFFICE_SEEDS))}. Mornings: share of the"
    yield "requests that arrive from 8:54 to 9:30 on Monday and Tuesday."
    yield ""
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
    yield from table(rows)
    yield ""


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
