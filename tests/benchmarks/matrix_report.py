"""`docs/benchmarks.md` with its pictures, from runs that are kept or missing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_jsonable_python
from tests.benchmarks.matrix import PLANS, ROOT, arguments, cells_of, outcomes, plan_of
from tests.benchmarks.matrix_findings import Findings, strongest
from tests.benchmarks.matrix_pictures import frontier, slug, timeline, write
from tests.benchmarks.matrix_search import TUNED, commit, today
from tests.benchmarks.matrix_sections import bounds, days, losses, parts, seasons
from tests.benchmarks.matrix_summary import summary_rows
from tests.benchmarks.matrix_tables import brief, spread, table

from servingslo.units import format_duration
from servingslo_lab.sim.policies import FORESIGHT, ORACLE, OURS, STATIC
from servingslo_lab.sim.scenario import Scenario
from servingslo_lab.sim.standard import SHARE_TARGET
from servingslo_lab.sim.summary import PolicySummary

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "benchmarks"
REFERENCE = Path(__file__).with_name("reference.yaml")
KNOBS = f"{OURS}+knobs"
# Differences from the other simulator that are worth a look.
_FAR_SHARE, _FAR_COST = 3.0, 0.15

_HEAD = """\
# Benchmarks

Share of requests in SLO against replica-hours, beside the rules of other autoscalers. A request is
in SLO when its TTFT is at most 1 s and its TPOT at most 50 ms; rejected, lost and unfinished
requests miss. The target is 99 %. Costs are relative to a clairvoyant oracle, the cheapest schedule
found that meets the target on the same trace; it was run, but a cheaper one may exist. Cold start
90 s unless the name of a scenario says more; scrapes every 15 s, seen 5 s late; at most twice the
oracle's peak of replicas.

- Made by `{command}` at commit `{commit}`, {today}.
- Holds {count} scenarios, every policy on all of them, on seeds {seeds} of the
  {planned} planned. Traces of every seed differ; intervals are 95 % by Student's t.
- Ours: `{ours}` is the production planner at its defaults, replicas only; `{knobs}` also sets
  batch limits, which live are off by default, and enforces bounds on queues and requests in
  flight, which only the simulator does. Nothing is set per trace.
- {tuning}
- `{static}`: the least constant count that meets the target. `{foresight}`: knows the mean demand
  one cold start ahead. Both are chosen in hindsight, on the trace itself.

## Summary

Share in SLO in %, with its interval over seeds, @ replica-hours over the oracle's. Cheapest
other: the cheapest that meets the target on this trace, of all rules at defaults and tuned; if
none does, the one with the largest share. h: replica-hours, where no schedule meets the target at
any cost.
"""


def tuned() -> dict[str, Any]:
    """The settings that the search found; empty before it ran."""
    document = yaml.safe_load(TUNED.read_text(encoding="utf-8"))
    return document if document.get("cards") else {}


def page(findings: Findings, command: str, planned: int) -> str:
    """The page in Markdown; planned: seeds of the whole plan."""
    head = _HEAD.format(
        command=command,
        commit=commit(),
        today=today(),
        count=len(findings.plan.scenarios),
        seeds=", ".join(map(str, findings.plan.seeds)),
        planned=planned,
        ours=OURS,
        knobs=KNOBS,
        static=STATIC,
        foresight=FORESIGHT,
        tuning=_tuning(),
    )
    lines = [
        head,
        *table(summary_rows(findings.by_scenario, [one.name for one in findings.plan.scenarios])),
        "",
        *losses(findings),
        *_reference(findings),
        *bounds(findings),
        *parts(findings),
        *days(findings),
        *seasons(findings),
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
        "[0009](designs/0009-benchmark.md) says why they differ."
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
    if findings.get(where.name, ORACLE) is None:
        yield (
            f"No schedule has {100 * SHARE_TARGET:g} % of this trace in SLO at any cost: prefill "
            "alone takes too long. Costs in the summary are replica-hours, without a bound on "
            "replicas."
        )
    else:
        yield f"![share in SLO against cost, {where.name}](benchmarks/{name}.svg)"
    yield ""
    best = strongest(findings.by_scenario[where.name])
    rival = "" if best is None else f"; orange: {best.policy}"
    known = "" if findings.get(where.name, ORACLE) is None else "; dashed: the oracle"
    yield f"Ready replicas over time. Blue: {OURS}{known}{rival}."
    yield ""
    yield f"![ready replicas, {where.name}](benchmarks/{name}-replicas.svg)"
    yield ""
    rows = [["policy", "in SLO, %", "over oracle", "replica-hours", "$/Mtok", "actions/h",
             "worst minute, %", "recovery", "rejected, %"]]  # fmt: skip
    found = sorted(findings.by_scenario[where.name], key=_order)
    rows += [
        [
            f"**{one.policy}**" if one.on_frontier and not one.in_hindsight else one.policy,
            spread(one.share_ratio, 100.0),
            spread(one.relative_cost, 1.0),
            f"{one.replica_hours.mean:.2f}",
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


def main() -> None:
    """Make what is missing, and write the page and its pictures."""
    given = arguments().parse_args()
    plan = plan_of(given)
    if given.policies != "all":
        outcomes(cells_of(plan), given.processes)
        return
    findings = Findings(plan, given.processes)
    for where in plan.scenarios:
        found = findings.by_scenario[where.name]
        runs = [o for o in findings.outcomes if o.scenario == where.name]
        best = strongest(found)
        name = slug(where.name)
        if findings.get(where.name, ORACLE) is not None:
            write(PICTURES / f"{name}.svg", frontier(found, findings.settings(where.name)))
        rival = None if best is None else best.policy
        write(PICTURES / f"{name}-replicas.svg", timeline(runs, rival))
    command = {"standard": "make benchmark", "full": "make benchmark-full"}.get(
        given.plan, f"make benchmark PLAN={given.plan}"
    )
    if given.seeds is not None:
        command += f" SEEDS={given.seeds}"
    planned = len(PLANS[given.plan]().seeds)
    PAGE.write_text(page(findings, command, planned), encoding="utf-8")
    document = to_jsonable_python(findings.by_scenario)
    (PICTURES / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
