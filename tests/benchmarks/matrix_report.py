"""The data of `docs/benchmarks`, from runs that are kept or missing, and the page from them."""

import json

from pydantic_core import to_jsonable_python
from tests.benchmarks.matrix import arguments, cells_of, outcomes, plan_of
from tests.benchmarks.matrix_findings import Findings, strongest
from tests.benchmarks.matrix_page import DATA, MADE, csv_text, write_page
from tests.benchmarks.matrix_pictures import PICTURED, frontier, slug, timeline, write
from tests.benchmarks.matrix_search import commit, today
from tests.benchmarks.matrix_sections import (
    another_simulator,
    bounds,
    days,
    gap,
    offices,
    parts,
    settings,
)

TABLES = {
    "settings": settings,
    "another-simulator": another_simulator,
    "bound": bounds,
    "gap": gap,
    "parts": parts,
    "days": days,
    "offices": offices,
}


def draw(findings: Findings) -> None:
    """Write the pictures that the page shows."""
    for where in PICTURED:
        if where not in findings.by_scenario:
            continue
        found = findings.by_scenario[where]
        runs = [o for o in findings.outcomes if o.scenario == where]
        best = strongest(found)
        write(DATA / f"{slug(where)}.svg", frontier(found, findings.settings(where)))
        rival = None if best is None else best.policy
        write(DATA / f"{slug(where)}-replicas.svg", timeline(runs, rival))


def store(findings: Findings, command: str) -> None:
    """Write all that the page is made from."""
    document = to_jsonable_python(findings.by_scenario)
    (DATA / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for name, rows in TABLES.items():
        (DATA / f"{name}.csv").write_text(csv_text(rows(findings)), encoding="utf-8")
    made = {
        "command": command,
        "commit": commit(),
        "date": today(),
        "seeds": ", ".join(map(str, findings.plan.seeds)),
        "notes": "",
    }
    MADE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Make what is missing, store it, and write the page."""
    given = arguments().parse_args()
    plan = plan_of(given)
    if given.policies != "all":
        outcomes(cells_of(plan), given.processes)
        return
    findings = Findings(plan, given.processes)
    command = {"standard": "make benchmark", "full": "make benchmark-full"}.get(
        given.plan, f"make benchmark PLAN={given.plan}"
    )
    if given.seeds is not None:
        command += f" SEEDS={given.seeds}"
    draw(findings)
    store(findings, command)
    write_page()


if __name__ == "__main__":
    main()
