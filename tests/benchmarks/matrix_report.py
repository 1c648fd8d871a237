"""`docs/benchmarks.md` with its pictures, from runs that are kept or missing."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_jsonable_python
from tests.benchmarks.matrix import (
    LARGE,
    ROOT,
    SMALL,
    Plan,
    arguments,
    cells_of,
    outcomes,
    plan_of,
    scenario,
)
from tests.benchmarks.matrix_pictures import frontier, slug, timeline, write
from tests.benchmarks.matrix_search import CASES, SEED, TUNED, Setting, commit, searched, today

from servingslo.sim.policies import FORESIGHT, ORACLE, OURS, STATIC, policy_of
from servingslo.sim.scenario import Cell, Scenario
from servingslo.sim.scoring import Interval
from servingslo.sim.standard import SHARE_TARGET
from servingslo.sim.summary import PolicySummary, beats, summaries
from servingslo.units import format_duration

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "benchmarks"
REFERENCE = Path(__file__).with_name("reference.yaml")
KNOBS = f"{OURS}+knobs"
# Differences from the other simulator that are worth a look.
_FAR_SHARE, _FAR_COST = 3.0, 0.15

Table = list[list[str]]
_HEAD = """\
# Benchmarks

Share of requests in SLO against replica-hours, beside the rules of other autoscalers. A request is
in SLO when its TTFT is at most 1 s and its TPOT at most 50 ms; rejected, lost and unfinished
requests miss. The target is 99 %. Costs are relative to a clairvoyant oracle, the cheapest schedule
found that meets the target on the same trace; it was run, but a cheaper one may exist. Cold start
90 s unless the name of a scenario says more; scrapes every 15 s, seen 5 s late; at most twice the
oracle's peak of replicas.

- Made by `{command}` at commit `{commit}`, {today}.
- Seeds: {seeds}. Traces of every seed differ; intervals are 95 % by Student's t.
- Ours: `{ours}` is the production planner at its defaults, replicas only; `{knobs}` also sets
  batch limits and queue bounds. Nothing is set per trace.
- {tuning}
- `{static}`: the least constant count that meets the target. `{foresight}`: knows the mean demand
  one cold start ahead. Both are chosen in hindsight, on the trace itself.

## Summary

Share in SLO in % @ replica-hours over the oracle's. Strongest other: the cheapest that meets the
target on this trace, of all rules at defaults and tuned; where none does, the one with the largest
share.
"""


class Findings:
    """All runs of a plan, by scenario, with the settings that were searched."""

    def __init__(self, plan: Plan, processes: int) -> None:
        self.plan = plan
        cells = cells_of(plan)
        # What the searched settings are held against, on their own seed.
        ours = [
            Cell(scenario=scenario(case, engine), policy=policy_of(name), seed=SEED,
                 with_timeline=False)
            for engine in (LARGE, SMALL) for case in CASES for name in (OURS, KNOBS)
        ]  # fmt: skip
        self.searched = searched()
        self.ours_searched = outcomes(ours, processes) if self.searched else []
        self.outcomes = outcomes(cells, processes)
        self.by_scenario = {
            where.name: summaries(
                [o for o in self.outcomes if o.scenario == where.name],
                dollars_per_hour=where.fleet.dollars_per_hour,
            )
            for where in plan.scenarios
        }

    def settings(self, where: str) -> list[Setting]:
        """Every searched setting of other rules on a scenario."""
        return [setting for setting in self.searched if setting.scenario == where]

    def get(self, where: str, policy: str) -> PolicySummary | None:
        """One policy on a scenario; None where it has no result."""
        return next((s for s in self.by_scenario[where] if s.policy == policy), None)


def tuned() -> dict[str, Any]:
    """The settings that the search found; empty before it ran."""
    document = yaml.safe_load(TUNED.read_text(encoding="utf-8"))
    return document if document.get("cards") else {}


def strongest(found: Sequence[PolicySummary]) -> PolicySummary | None:
    """The cheapest peer that meets the target; else the one with the largest share."""
    peers = [s for s in found if not s.in_hindsight and not s.policy.startswith(OURS)]
    good = [s for s in peers if s.share_ratio.mean >= SHARE_TARGET]
    if good:
        return min(good, key=lambda s: s.replica_hours.mean)
    return max(peers, key=lambda s: s.share_ratio.mean, default=None)


def page(findings: Findings, command: str) -> str:
    """The page in Markdown."""
    head = _HEAD.format(
        command=command,
        commit=commit(),
        today=today(),
        seeds=", ".join(map(str, findings.plan.seeds)),
        ours=OURS,
        knobs=KNOBS,
        static=STATIC,
        foresight=FORESIGHT,
        tuning=_tuning(),
    )
    lines = [
        head,
        *table(_summary_rows(findings)),
        "",
        *_losses(findings),
        *_reference(findings),
    ]
    for where in findings.plan.scenarios:
        lines += ["", *_scenario(findings, where)]
    return "\n".join(lines) + "\n"


def _tuning() -> str:
    document = tuned()
    if not document:
        return "Rules run at their defaults; no search over their settings has been made."
    cases, seeds = document["cases"], document["seeds"]
    return (
        f"`:tuned`: the best setting of a rule on each card, of all in its grid, searched on "
        f"{', '.join(map(str, cases))} with seed {', '.join(map(str, seeds))} "
        f"(`make benchmark-search`, commits in `sim/baselines/tuned.yaml`)."
    )


def _summary_rows(findings: Findings) -> Table:
    rows = [["trace", "oracle, replica-hours", OURS, KNOBS, "strongest other", STATIC, FORESIGHT]]
    for where in findings.plan.scenarios:
        oracle = findings.get(where.name, ORACLE)
        best = strongest(findings.by_scenario[where.name])
        rows.append([
            where.name,
            "-" if oracle is None else f"{oracle.replica_hours.mean:.2f}",
            *(brief(findings.get(where.name, name)) for name in (OURS, KNOBS)),
            "-" if best is None else f"{brief(best)} {best.policy}",
            *(brief(findings.get(where.name, name)) for name in (STATIC, FORESIGHT)),
        ])  # fmt: skip
    return rows


def brief(one: PolicySummary | None) -> str:
    """'99.8 @ 1.21'."""
    if one is None or one.relative_cost is None:
        return "-"
    return _pair_text(one.share_ratio.mean, one.relative_cost.mean)


def _losses(findings: Findings) -> Iterator[str]:
    """Where ours is beaten: by a rule of the tables, or by any setting that was searched."""
    yield "## Where ours is beaten"
    yield ""
    yield "Beaten: another has as high a share at as low a cost, and one of them is better."
    yield ""
    found = list(_beaten(findings))
    yield from found or ["- Nowhere: no rule at its defaults or tuned beats ours on any trace."]
    yield ""
    if findings.searched:
        yield f"Against every setting of every rule's grid, on seed {SEED}:"
        yield ""
        by_setting = list(_beaten_by_settings(findings))
        yield from by_setting or ["- Nowhere."]
        yield ""
    over = list(_dearer_than_static(findings))
    yield "Dearer at the target than the constant count chosen in hindsight:"
    yield ""
    yield from over or ["- Nowhere."]
    yield ""


def _beaten(findings: Findings) -> Iterator[str]:
    for where in findings.plan.scenarios:
        for name in (OURS, KNOBS):
            one = findings.get(where.name, name)
            peers = [p for p in one.beaten_by if not p.startswith(OURS)] if one else []
            if one is not None and peers:
                by = ", ".join(f"{p} ({brief(findings.get(where.name, p))})" for p in peers)
                yield f"- {where.name}, {name} ({brief(one)}): by {by}"


def _beaten_by_settings(findings: Findings) -> Iterator[str]:
    for one in findings.ours_searched:
        if (mine := one.score) is None:
            continue
        better = [
            s
            for s in findings.settings(one.scenario)
            if beats(s.share_ratio, s.replica_hours, mine.share_ratio, mine.replica_hours)
        ]
        if better:
            first = min(better, key=lambda s: s.replica_hours)
            text = _pair_text(mine.share_ratio, mine.relative_cost)
            yield (
                f"- {one.scenario}, {one.policy} ({text}): by {len(better)}, the cheapest of them "
                f"{first.policy} ({_pair_text(first.share_ratio, first.relative_cost)})"
            )


def _dearer_than_static(findings: Findings) -> Iterator[str]:
    for where in findings.plan.scenarios:
        static, mine = findings.get(where.name, STATIC), findings.get(where.name, OURS)
        if static is None or mine is None:
            continue
        if mine.replica_hours.mean > static.replica_hours.mean:
            yield f"- {where.name}: {brief(mine)} against {brief(static)}"


def _pair_text(share_ratio: float, relative_cost: float | None) -> str:
    cost = "-" if relative_cost is None else f"{relative_cost:.2f}"
    return f"{100 * share_ratio:.1f} @ {cost}"


def _reference(findings: Findings) -> Iterator[str]:
    """The same rows by another simulator."""
    known = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    shared = [name for name in known["scenarios"] if name in findings.by_scenario]
    if not shared:
        return
    yield "## Against another simulator"
    yield ""
    yield (
        "A simulator written apart from this one, with its own implementations of the rules, on "
        "the same fleets and traces: here / there. Bold: more than "
        f"{_FAR_SHARE:g} points of share or {100 * _FAR_COST:g} % of cost apart. The design note "
        "[0005](designs/0005-benchmark.md) says why they differ."
    )
    yield ""
    rows = [["", *shared]]
    hours = dict(zip(known["scenarios"], known["oracle_hours"], strict=True))
    rows.append(
        ["oracle, replica-hours", *(_hours(findings, name, hours[name]) for name in shared)]
    )
    for policy, values in known["rows"].items():
        there = dict(zip(known["scenarios"], values, strict=True))
        rows.append([policy, *(_pair(findings.get(name, policy), there[name]) for name in shared)])
    yield from table(rows)
    yield ""


def _hours(findings: Findings, where: str, there: float) -> str:
    here = findings.get(where, ORACLE)
    return "-" if here is None else f"{here.replica_hours.mean:.2f} / {there:.2f}"


def _pair(here: PolicySummary | None, there: str) -> str:
    share, cost = map(float, there.split("@"))
    text = f"{brief(here)} / {share:g} @ {cost:.2f}"
    if here is None or here.relative_cost is None:
        return text
    far = (
        abs(100 * here.share_ratio.mean - share) > _FAR_SHARE
        or abs(here.relative_cost.mean / cost - 1.0) > _FAR_COST
    )
    return f"**{text}**" if far else text


def _scenario(findings: Findings, where: Scenario) -> Iterator[str]:
    name = slug(where.name)
    yield f"## {where.name}"
    yield ""
    yield f"![share in SLO against cost, {where.name}](benchmarks/{name}.svg)"
    yield ""
    best = strongest(findings.by_scenario[where.name])
    rival = "" if best is None else f"; orange: {best.policy}"
    yield f"Ready replicas over time. Blue: {OURS}; dashed: the oracle{rival}."
    yield ""
    yield f"![ready replicas, {where.name}](benchmarks/{name}-replicas.svg)"
    yield ""
    rows = [["policy", "in SLO, %", "over oracle", "$/Mtok", "actions/h", "worst minute, %",
             "recovery", "rejected, %"]]  # fmt: skip
    found = sorted(findings.by_scenario[where.name], key=_order)
    rows += [
        [
            f"**{one.policy}**" if one.on_frontier and not one.in_hindsight else one.policy,
            spread(one.share_ratio, 100.0),
            spread(one.relative_cost, 1.0),
            spread(one.dollars_per_million_tokens, 1.0),
            f"{one.actions_per_hour.mean:.0f}",
            f"{100 * one.worst_minute_ratio:.1f}",
            format_duration(one.recovery_seconds),
            f"{100 * one.rejected_ratio:.1f}",
        ]
        for one in found
    ]
    yield from table(rows)


def _order(one: PolicySummary) -> tuple[bool, bool, bool, float]:
    """Ours, what was chosen in hindsight, then others by cost, those that meet the target first."""
    ours = one.policy.startswith(OURS)
    missed = one.share_ratio.mean < SHARE_TARGET
    cost = -one.share_ratio.mean if missed else one.replica_hours.mean
    return not ours, not one.in_hindsight, missed, cost


def spread(value: Interval | None, factor: float) -> str:
    """A mean with half the width of its interval."""
    if value is None:
        return "-"
    mean = f"{factor * value.mean:.2f}"
    return mean if value.half_width is None else f"{mean} ± {factor * value.half_width:.2f}"


def table(rows: Table) -> list[str]:
    """A table in Markdown."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in body)]


def main() -> None:
    """Make what is missing, and write the page and its pictures."""
    given = arguments().parse_args()
    plan = plan_of(given)
    findings = Findings(plan, given.processes)
    for where in plan.scenarios:
        found = findings.by_scenario[where.name]
        runs = [o for o in findings.outcomes if o.scenario == where.name]
        best = strongest(found)
        name = slug(where.name)
        write(PICTURES / f"{name}.svg", frontier(found, findings.settings(where.name)))
        rival = None if best is None else best.policy
        write(PICTURES / f"{name}-replicas.svg", timeline(runs, rival))
    command = {"standard": "make benchmark", "full": "make benchmark-full"}.get(
        given.plan, f"make benchmark PLAN={given.plan}"
    )
    if given.seeds is not None:
        command += f" SEEDS={given.seeds}"
    PAGE.write_text(page(findings, command), encoding="utf-8")
    document = to_jsonable_python(findings.by_scenario)
    (PICTURES / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
