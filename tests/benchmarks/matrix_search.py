"""The best settings of other autoscalers' rules, from `make benchmark-search`.

Every setting of a rule's grid runs on the cases below, on seeds that the benchmark does not use.
The best of a card meets the target on the most cases; of those, it is the cheapest on average over
the oracles; where none meets it anywhere, it is the one with the largest share.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from tests.benchmarks.matrix import LARGE, ROOT, SMALL, outcomes, scenario, settings_of

from servingslo.sim.outcome import Outcome
from servingslo.sim.policies import RULES, policy_of
from servingslo.sim.scenario import Cell
from servingslo.sim.standard import SHARE_TARGET

TUNED = ROOT / "operator" / "servingslo" / "sim" / "baselines" / "tuned.yaml"
CASES = ("azure-conv", "ramp", "flash")
SEARCHED = Path(__file__).with_name("searched.json")
SEED = 11
_HEADER = """\
# Settings of other rules that did best in a search over the grids of `policies.RULES`: the ones
# that meet 99 % in SLO on the most of the cases below, of those the cheapest on average over
# the oracles. The seed is none of the benchmark's. Written by `make benchmark-search`; reviewed.
"""


def rank(found: Sequence[Outcome]) -> tuple[float, ...]:
    """What is least for the best setting, from its runs on all cases."""
    scores = [outcome.score for outcome in found if outcome.score is not None]
    met = sum(score.share_ratio >= SHARE_TARGET for score in scores)
    cost = sum(score.relative_cost or 0.0 for score in scores) / len(scores)
    share = sum(score.share_ratio for score in scores) / len(scores)
    return (-met, cost if met else 0.0, -share)


def search_cells(engine: str) -> list[Cell]:
    """Every setting of every rule on every case of the search."""
    return [
        Cell(
            scenario=scenario(case, engine), policy=policy_of(text), seed=SEED, with_timeline=False
        )
        for case in CASES
        for rule in RULES
        for text in settings_of(rule)
    ]


def best_settings(found: Sequence[Outcome]) -> Mapping[str, Mapping[str, float]]:
    """The best setting of each rule, of the runs on one card."""
    by_setting: dict[str, list[Outcome]] = {}
    for outcome in found:
        by_setting.setdefault(outcome.policy, []).append(outcome)
    best = {}
    for name, rule in RULES.items():
        text = min(settings_of(name), key=lambda text: rank(by_setting[text]))
        parameters = policy_of(text).parameters
        best[name] = {key: float(parameters[key]) for key in rule.grid}
    return best


def main() -> None:
    """Search on both cards; write the best settings, and what every setting gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    processes = parser.parse_args().processes
    runs = {engine: outcomes(search_cells(engine), processes) for engine in (SMALL, LARGE)}
    made = {"commit": commit(), "date": today(), "seeds": [SEED], "cases": list(CASES)}
    best = {"cards": {engine: best_settings(found) for engine, found in runs.items()}}
    text = yaml.safe_dump({**made, **best}, sort_keys=False)
    TUNED.write_text(_HEADER + text, encoding="utf-8")
    rows = [
        [o.scenario, o.policy, o.score.share_ratio, o.score.replica_hours, o.score.relative_cost]
        for found in runs.values()
        for o in found
        if o.score is not None
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps(made)[1:-1]
    SEARCHED.write_text(f'{{{head}, "settings": [\n{lines}\n]}}\n', encoding="utf-8")


@dataclass(frozen=True)
class Setting:
    """What one setting of a rule gave in the search."""

    scenario: str
    policy: str
    share_ratio: float
    replica_hours: float
    relative_cost: float


def searched() -> list[Setting]:
    """What every setting gave; empty before the first search."""
    if not SEARCHED.exists():
        return []
    document = json.loads(SEARCHED.read_text(encoding="utf-8"))
    return [Setting(*row) for row in document["settings"]]


def today() -> str:
    """The date, for people."""
    return datetime.now(tz=UTC).date().isoformat()  # noqa: TID251 - of the machine on purpose


def commit() -> str:
    """The commit of this checkout, marked where files of the product differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "operator/servingslo")
    return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")


if __name__ == "__main__":
    main()
