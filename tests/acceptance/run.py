"""What a release waits for and a change does not: longer runs, each a command of its own.

    python -m tests.acceptance.run [--only validate,install] [--vllm PYTHON] [--list]

Runs each check, prints what it prints, and writes `docs/acceptance.md` with the date and the
commit. A check that was not run keeps the row of its last run. Ends with 1 where one failed.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "acceptance.md"
FAILED, NOT_RUN = "failed", "not run"
# The real engine's environment is not made here: docs/how-to/real-engine.md says how.
REAL_ENGINES = frozenset({"engine-law", "real-engine"})
HEAD = """# What a release waits for

`make acceptance` runs these checks before a release and writes this page. Each row is its last
run, at the commit that it names; a run whose commit is not in the history is not shown. The
release workflow refuses a tag while one has failed, was not run, or ran too many commits ago
(`make release-gate`).

{summary}

<!-- made by make acceptance -->

| check | what it shows | result | closing line | minutes | date | commit |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    shows: what is true when it succeeds, in a few words.
    command: its arguments, after the Python of the development environment.
    """

    name: str
    shows: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a check ended.

    closing: the last line that it printed.
    """

    succeeded: bool
    closing: str
    minutes: float


_TESTS = ("-m", "pytest", "--acceptance")
CHECKS = (
    Check(
        name="install",
        shows="the development lock installs with pip 22.3 and with the newest pip",
        command=(*_TESTS, "tests/e2e/test_setup.py"),
    ),
    Check(
        name="image",
        shows="the Dockerfile's image, its SBOM, and a release whose pods run it and decide",
        command=(*_TESTS, "tests/e2e/test_image.py", "tests/integration/test_as_a_pod.py"),
    ),
    Check(
        name="flash-crowd",
        shows="a crowd with admission off and on, before a real Envoy: three seeds, and a control",
        command=(*_TESTS, "tests/e2e/test_demo_crowd.py"),
    ),
    Check(
        name="batch-limits",
        shows="batch limits too low, too high and harmful, each put right with one pod first",
        command=(*_TESTS, "tests/e2e/test_demo_limits.py"),
    ),
    Check(
        name="classes",
        shows="chat and a background job behind a real Envoy, with classes and without: two seeds",
        command=(*_TESTS, "-n", "2", "tests/e2e/test_demo_classes.py"),
    ),
    Check(
        name="demo",
        shows="Ctrl-C at later moments of the demo ends every process and removes every file",
        command=(*_TESTS, "tests/e2e/test_demo.py"),
    ),
    Check(
        name="canary",
        shows="batch limits on one pod first: kept, reverted, and released without the operator",
        command=(
            *_TESTS,
            "tests/integration/test_batch_canary.py",
            "tests/integration/test_release_of_canaries.py",
        ),
    ),
    Check(
        name="stories",
        shows="long stories of the planner, further cases of them, and memory over 160 ticks",
        command=(
            *_TESTS,
            "tests/unit",
            "tests/golden",
            "tests/property",
            "tests/chaos",
            "tests/validation",
            "tests/features",
        ),
    ),
    Check(
        name="fuzz",
        shows="properties on new examples; 100,000 manifests, pages and command lines each",
        command=("-m", "pytest", "tests/property"),
    ),
    Check(
        name="chaos",
        shows="100,000 faults in virtual time: no write that the independent checker forbids",
        command=("-m", "tests.chaos.run", "--processes", "2"),
    ),
    Check(
        name="chaos-live",
        shows="1,000 faults on the rig: no write in the audit log that the checker forbids",
        command=("-m", "tests.chaos.live", "--faults", "1000"),
    ),
    Check(
        name="many-workloads",
        shows="140 workloads with 600 pods: laws trusted, rates within 10 %, nothing ordered",
        command=(*_TESTS, "tests/integration/test_many_workloads.py"),
    ),
    Check(
        name="under-load",
        shows="replicas and pools follow load; two cards; two weeks back; pages of too many series",
        command=(
            *_TESTS,
            "tests/integration/test_lifecycle_scaling.py",
            "tests/integration/test_variants.py",
            "tests/integration/test_crowded_pages.py",
            "tests/integration/test_prometheus_past_rates.py",
            "tests/integration/test_pools.py",
        ),
    ),
    Check(
        name="rig",
        shows="the rig is a real cluster, and it ends with its program",
        command=(
            *_TESTS,
            "tests/integration/test_rig.py",
            "tests/integration/test_rig_parts.py",
        ),
    ),
    Check(
        name="validate",
        shows="the models against an independent simulation, the whole sample of the grid",
        command=("-m", "tests.validation.run"),
    ),
    Check(
        name="closed-loop",
        shows="a trace through the live rig and the simulator: as alike as two of its runs",
        command=("-m", "tests.validation.closed_loop"),
    ),
    Check(
        name="shadow",
        shows="hours of a real Prometheus: what was ordered, an HPA's rule, and ServingSLO",
        command=(*_TESTS, "tests/integration/test_shadow_week.py"),
    ),
    Check(
        name="zero",
        shows="no replica, one, none, one, none: woken by what a real Envoy refuses",
        command=(*_TESTS, "tests/integration/test_zero.py"),
    ),
    Check(
        name="failover",
        shows="ten leaders killed, stopped or cut off in a surge: only the Lease's holder writes",
        command=(
            *_TESTS,
            "tests/integration/test_failover_surge.py",
            "tests/integration/test_failover.py",
        ),
    ),
    Check(
        name="shards",
        shows="three shards on a real API server: no resource has two owners",
        command=(*_TESTS, "tests/integration/test_shards.py"),
    ),
    Check(
        name="interop",
        shows="KEDA's operator and metrics server and the HPA carry 11, 12, 11 out exactly",
        command=(*_TESTS, "tests/integration/test_keda_operator.py"),
    ),
    Check(
        name="compare",
        shows="ServingSLO, an HPA and KEDA live on the same traffic: in SLO at replica-hours",
        command=("-m", "tests.benchmarks.compare"),
    ),
    Check(
        name="kueue",
        shows="Kueue's controller: Queued in its words, nothing ordered beyond, served with quota",
        command=(*_TESTS, "tests/integration/test_kueue.py"),
    ),
    Check(
        name="warm",
        shows="engines that sleep: out of the traffic first, woken in a surge, awake at the end",
        command=(*_TESTS, "tests/integration/test_warm_replicas.py"),
    ),
    Check(
        name="lws",
        shows="LeaderWorkerSet's controller: groups ordered, released, counted whole; in pools too",
        command=(*_TESTS, "tests/integration/test_leader_worker_set.py"),
    ),
    Check(
        name="budget",
        shows="two models under one budget: specs never above its GPUs",
        command=(*_TESTS, "tests/integration/test_serving_budget.py"),
    ),
    Check(
        name="degradation",
        shows="a crowd is served, degraded, refused and back; a full fallback is not used further",
        command=(*_TESTS, "tests/integration/test_degradation.py"),
    ),
    Check(
        name="istio",
        shows="what real DestinationRules do: from a real istiod into a real Envoy, and verified",
        command=(*_TESTS, "tests/integration/test_istio.py"),
    ),
    Check(
        name="picker",
        shows="the inference extension's own endpoint picker behind Envoy: read by priority",
        command=(*_TESTS, "tests/integration/test_endpoint_picker.py"),
    ),
    Check(
        name="triton",
        shows="twelve loads of a real Triton against the law of batches and the server's rules",
        command=("-m", "tests.validation.triton_points", "--out", "docs/lab/triton.md"),
    ),
    Check(
        name="triton-scaling",
        shows="replicas of a real Triton follow its load, by its counters",
        command=(*_TESTS, "tests/integration/test_triton_scaling.py"),
    ),
    Check(
        name="triton-limits",
        shows="limits too low on real Triton servers are set right under load, no request failed",
        command=(
            *_TESTS,
            "tests/integration/test_triton_limits.py",
            "tests/e2e/test_demo_triton.py",
            "tests/integration/test_triton.py",
            "tests/integration/test_triton_model_repository.py",
        ),
    ),
    Check(
        name="llm-d-sim",
        shows="replicas of llm-d-inference-sim, read as vLLM, follow a surge and come back",
        command=(*_TESTS, "tests/e2e/test_demo_llm_d_sim.py"),
    ),
    Check(
        name="engine-law",
        shows="the law of a real vLLM through the operator's own chain",
        command=("-m", "tests.validation.real_engine", "--out", "out/real-engine"),
    ),
    Check(
        name="real-engine",
        shows="real vLLM engines scaled by the operator from 1 and back, no request aborted",
        command=("-m", "tests.validation.real_engine_loop"),
    ),
)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> Outcome:
    """Run a command, print what it prints as it comes, and keep its last line."""
    begin = time.monotonic()
    closing = ""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _say(line)
            closing = line.strip(" =\n") or closing
    minutes = (time.monotonic() - begin) / 60
    return Outcome(succeeded=process.returncode == 0, closing=closing, minutes=minutes)


def row(check: Check, outcome: Outcome, date: str, commit: str) -> str:
    """The check's line of the page."""
    result = "passed" if outcome.succeeded else FAILED
    closing = re.sub(r"\s+", " ", outcome.closing).replace("|", "/")
    cells = (
        check.name, check.shows, result, closing, f"{outcome.minutes:.1f}", date, commit,
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def rows_of(page: str) -> dict[str, str]:
    """The lines of a page by the names of their checks."""
    body = page.partition("|---|")[2]
    return {m[1]: m[0] for m in re.finditer(r"^\| ([a-z-]+) \|.*\|$", body, re.MULTILINE)}


def page_with(rows: dict[str, str]) -> str:
    """The page: a row for each check, also for those that were not run, and what is missing."""
    never = {c.name: f"| {c.name} | {c.shows} | {NOT_RUN} | | | | |" for c in CHECKS}
    lines = {c.name: rows.get(c.name, never[c.name]) for c in CHECKS}
    head = HEAD.format(summary=summary(lines))
    return head + "".join(f"{line}\n" for line in lines.values()) + "\n<!-- end -->\n"


def summary(lines: dict[str, str]) -> str:
    """How many checks passed, and which failed or were not run. lines: rows by name."""
    results = {name: line.split(" | ")[2].strip() for name, line in lines.items()}
    missing = {
        said: [name for name, result in results.items() if result == said]
        for said in (FAILED, NOT_RUN)
    }
    passed = len(results) - sum(map(len, missing.values()))
    told = [
        f"{len(names)} {'were not run' if said == NOT_RUN else said} ({', '.join(names)})"
        for said, names in missing.items()
        if names
    ]
    waits = "; a release waits for these" if told else ""
    return "; ".join([f"**Of {len(results)} checks {passed} passed", *told]) + f"{waits}.**"


def head_commit() -> str:
    """The commit, with a plus where tracked files differ from it."""
    command = ("git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+")
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _chosen(only: str | None, vllm: Path | None) -> list[Check]:
    names = [c.name for c in CHECKS] if only is None else only.split(",")
    unknown = set(names) - {c.name for c in CHECKS}
    if unknown:
        allowed = ", ".join(c.name for c in CHECKS)
        sys.exit(f"--only {only}: no check is named {min(unknown)}; allowed: {allowed}")
    for name in sorted(REAL_ENGINES.intersection(names)) if vllm is None else ():
        if only is not None:
            sys.exit(f"--only {only}: {name} needs --vllm PYTHON, an environment with vLLM")
        names.remove(name)
        _say(f"{name} is not run: it needs --vllm PYTHON\n")
    return [c for c in CHECKS if c.name in names]


def main() -> None:
    """Run the checks and write the page after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="Names of checks, with commas between.")
    parser.add_argument("--vllm", type=Path, help="Python of an environment that has vLLM.")
    parser.add_argument("--list", action="store_true", help="Only list the checks.")
    given = parser.parse_args()
    if given.list:
        for check in CHECKS:
            _say(f"{check.name:12} {check.shows}\n{'':12} {' '.join(check.command)}\n")
        return
    failed = []
    commit = head_commit()
    for check in _chosen(given.only, given.vllm):
        engine = ("--vllm", str(given.vllm)) if check.name in REAL_ENGINES else ()
        fuzz = {"HYPOTHESIS_PROFILE": "fuzz", "FUZZ_EXAMPLES": "100000"}
        profile = fuzz if check.name == "fuzz" else {}
        _say(f"== {check.name}: {check.shows}\n")
        outcome = run((sys.executable, *check.command, *engine), {**os.environ, **profile})
        date = time.strftime("%Y-%m-%d", time.gmtime())
        rows = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
        rows[check.name] = row(check, outcome, date, commit)
        PAGE.write_text(page_with(rows), encoding="utf-8")
        if not outcome.succeeded:
            failed.append(check.name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
