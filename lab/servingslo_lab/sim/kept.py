"""Store runs under a key of everything that they depend on, source code included."""

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

import servingslo
import servingslo_lab
from servingslo_lab.sim.policies import (
    COLD,
    RATIO,
    RATIO_RULE,
    REAL_RULES,
    RULES,
    SIMPLE,
    is_ours,
    rule_named,
)
from servingslo_lab.sim.scenario import Cell

FORMAT_VERSION = 2
_RULES_OF_OTHERS = ("servingslo_lab.sim.baselines", "servingslo_lab.sim.peers")
# The planner's own runs depend on all of it.
_PLANNER = ("policy", "estimation", "models", "runtimes", "features")
# Calculations outside the simulator that other autoscalers' rules use. Of laws and limits they only
# use the numbers, and those are in the key.
_SHARED = ("policy/hpa_behavior.py", "estimation/requests/histograms.py")
_SHARED_BASELINES = ("setting.py", "view.py", "clairvoyant.py")
# Definitions of engines and requests that the simulator uses.
_TOLD = (
    "models/known_engines.py",
    "models/known_engines.json",
)
# Modules that read and compare runs, and do not affect their results.
_BESIDE_RUNS = frozenset(
    {
        "backtest.py", "bound.py", "kept.py", "outcome.py", "policies.py", "rebuilt.py",
        "summary.py",
    }
)  # fmt: skip
_PLANNER_ALONE = "production.py"
# Rooms of the simulator whose modules decide a run, its top folder first.
_ROOMS = (".", "replicas", "fleets", "pools", "traces", "bounds")
_CELL: TypeAdapter[Cell] = TypeAdapter(Cell)


def key_of(cell: Cell) -> str:
    """A digest of everything that the outcome of a cell depends on.

    Only the trace file's content counts, not names or paths. So a run is found again under another
    label.
    """
    document = json.loads(_CELL.dump_json(cell))
    document["scenario"].pop("name")
    document["policy"].pop("label")
    if not is_ours(cell.policy.name) or cell.policy.name == COLD:
        document["scenario"].pop("past")  # other policies do not use it
    document["scenario"]["trace_path"] = _file_digest(cell.scenario.trace_path)
    text = json.dumps([FORMAT_VERSION, document, source_digest(cell.policy.name)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def store(path: Path, content: bytes) -> None:
    """Write atomically, because another process may write the same file."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


@cache
def _file_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def source_digest(policy_name: str) -> str:
    """A digest of the source code that runs of this policy depend on."""
    digest = hashlib.sha256()
    for path in sorted(set(_sources(policy_name))):
        digest.update(path.read_bytes())
    rule = REAL_RULES.get(policy_name)
    if rule is not None and rule.sources is not None:
        digest.update(rule.sources().encode())
    return digest.hexdigest()


def _sources(policy_name: str) -> Iterator[Path]:
    product = Path(servingslo.__file__).parent
    simulator = Path(servingslo_lab.__file__).parent / "sim"
    ours = is_ours(policy_name)
    beside = _BESIDE_RUNS if ours else _BESIDE_RUNS | {_PLANNER_ALONE}
    for room in _ROOMS:
        yield from (path for path in (simulator / room).glob("*.py") if path.name not in beside)
    yield from (simulator / "baselines" / name for name in _SHARED_BASELINES)
    yield from (product / name for name in (*_SHARED, *_TOLD))
    if ours or policy_name == SIMPLE:
        for package in _PLANNER if ours else ("models",):
            yield from (product / package).rglob("*.py")
    rule = RATIO_RULE if policy_name == RATIO else policy_name
    if rule in RULES or rule in REAL_RULES:
        yield from _modules_of(inspect.getmodule(rule_named(rule).build))


def _modules_of(module: object) -> Iterator[Path]:
    """The file of a rule's module and of the modules of other rules that it imports."""
    yield Path(inspect.getfile(module))  # type: ignore[arg-type]
    for value in vars(module).values():
        name = getattr(value, "__module__", "") or ""
        if name.startswith(_RULES_OF_OTHERS) and name != getattr(module, "__name__", ""):
            yield from _modules_of(sys.modules[name])
