"""`servingslo demo`: start the whole system, replay a trace with a surge, watch, sum up."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from servingslo.adapters.clock import SystemClock
from servingslo.errors import InvalidInputError
from servingslo.traces.trace import read_trace
from servingslo.units import SECONDS_PER_MINUTE
from servingslo_lab.cli.demo import dashboard, playback, report, story, view
from servingslo_lab.cli.demo.batch_limits import run_limits
from servingslo_lab.cli.demo.classes.run import run_classes
from servingslo_lab.cli.demo.disaggregated.run import run_disaggregated
from servingslo_lab.cli.demo.flash_crowd import run_crowd
from servingslo_lab.cli.demo.system import (
    CHART,
    EXAMPLE,
    TICK_SECONDS,
    TRACE,
    DemoSystem,
    Reporter,
    demo_system,
)
from servingslo_lab.cli.demo.timeline import DemoObjective, DemoSample, Timeline
from servingslo_lab.cli.demo.triton import run_triton
from servingslo_lab.rig.build import ensure_rig, resolve_tools
from servingslo_lab.rig.programs.versions import DEFAULT_TOOLS

# The trace alone needs three replicas of the small card at rest; the surge, more than twice that.
RATE_SCALE = 1.2
SURGE_FACTOR = 2.5
# The Azure hour begins with a quiet quarter; the demo begins behind it.
TRACE_START_SECONDS = 900.0
# A rate over a shorter span than this is noise.
LEAST_RATE_SPAN_SECONDS = 10.0
SURGE_START_RATIO = 0.25
SURGE_END_RATIO = 0.5
# Of the surge that is played while the rig is built.
PLAYED_SECONDS = 360.0
# Before the operator's first decision, so that it has something to learn from.
LOOK_SECONDS = 1.0
FIRST_DECISION_WORD = "decided "
# Share of a minute's requests that must meet all objectives for the minute to count as kept.
MINUTE_TARGET_RATIO = 0.95


class Scenario(StrEnum):
    """What happens in the demo."""

    SURGE = "surge"
    FLASH_CROWD = "flash-crowd"
    BATCH_LIMITS = "batch-limits"
    TRITON = "triton"
    DISAGGREGATED = "disaggregated"
    CLASSES = "classes"


def _check_out(out: Path) -> None:
    """Raises: InvalidInputError where no folder can be: told before minutes of traffic."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise InvalidInputError("--out", str(out), "a folder that can be written, or be made")


def demo(
    minutes: Annotated[
        float, typer.Option(min=1.0, max=600.0, help="How long traffic flows.")
    ] = 6.0,
    trace: Annotated[
        Path | None,
        typer.Option(help="A trace to replay instead of the Azure one; with surge alone."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where summary and picture go.")] = Path("out"),
    root: Annotated[Path, typer.Option(help="A checkout, for the chart and the example.")] = Path(),
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="surge: a trace with a surge. flash-crowd: a crowd, admission on and off. "
            "batch-limits: limits too low, too high, and a change that harms. "
            "triton: limits of real Triton servers, set while they run. "
            "disaggregated: prefill and decode pools, prompts and then answers that grow. "
            "classes: chat and a background job, with classes and without."
        ),
    ] = Scenario.SURGE,
    seed: Annotated[
        int,
        typer.Option(help="Of all but surge and triton: which requests come."),
    ] = 0,
    no_policy: Annotated[
        bool,
        typer.Option(
            "--no-policy", help="Of flash-crowd, a control that must fail: no policy reaches Envoy."
        ),
    ] = False,
) -> None:
    """Run the system on this machine: real control plane and Prometheus, simulated engines.

    Example: servingslo demo --minutes 10 --trace my-trace.csv
    """
    if not (root / CHART / "Chart.yaml").exists():
        raise InvalidInputError("--root", str(root), "a checkout of the project; none is there")
    _check_out(out)
    if trace is not None and scenario is not Scenario.SURGE:
        raise InvalidInputError("--trace", str(trace), f"only with --scenario {Scenario.SURGE}")
    source = trace or root / TRACE
    if scenario is Scenario.SURGE:
        read_trace(source, "--trace")  # a bad file is told before anything starts
    with _ending_on_termination():
        _build(root, scenario)
    if scenario is Scenario.FLASH_CROWD:
        with _ending_on_termination():
            text = run_crowd(
                root, minutes=minutes, seed=seed, out=out, reaches_envoy=not no_policy,
                tell=Reporter(),
            )  # fmt: skip
        print(text)
        return
    if scenario is Scenario.BATCH_LIMITS:
        with _ending_on_termination():
            text = run_limits(root, minutes=minutes, seed=seed, out=out, tell=Reporter())
        print(text)
        return
    if scenario is Scenario.TRITON:
        with _ending_on_termination():
            text = run_triton(root, minutes=minutes, out=out, tell=Reporter())
        print(text)
        return
    if scenario is Scenario.DISAGGREGATED:
        with _ending_on_termination():
            text = run_disaggregated(root, minutes=minutes, seed=seed, out=out, tell=Reporter())
        print(text)
        return
    if scenario is Scenario.CLASSES:
        with _ending_on_termination():
            text = run_classes(root, minutes=minutes, seed=seed, out=out, tell=Reporter())
        print(text)
        return
    console = Console()
    with _ending_on_termination(), demo_system(root, tell=Reporter()) as system:
        timeline = _timeline(system.objectives(), minutes * SECONDS_PER_MINUTE)
        plan = _plan(
            source.resolve(), timeline, minutes * SECONDS_PER_MINUTE, own_trace=trace is None
        )
        system.begin_traffic(plan)
        began, began_unix = time.monotonic(), SystemClock.now_seconds()
        _watch(console, system, timeline, minutes * SECONDS_PER_MINUTE)
        truth = system.truth(MINUTE_TARGET_RATIO)
        use = system.operator_use(time.monotonic() - began)
        text = report.summary(timeline, truth, use)
        written = [*report.write(out, timeline, text), *story.write(out, timeline)]
        console.print(text, markup=False, highlight=False)
        panels = system.dashboard(root, began_unix, SystemClock.now_seconds())
        written += dashboard.write(out, panels)
    for path in written:
        console.print(f"wrote {path}", markup=False, highlight=False)


def _build(root: Path, scenario: Scenario) -> None:
    """Build what the scenario lacks; meanwhile the planner is played on the demo's traffic."""
    timeline = _timeline((), PLAYED_SECONDS)
    plan = _plan(root / TRACE, timeline, PLAYED_SECONDS, own_trace=True)

    def meanwhile(say: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        return playback.played(root / EXAMPLE, TICK_SECONDS, plan, say)

    try:
        if scenario is Scenario.SURGE:
            resolve_tools(DEFAULT_TOOLS, meanwhile=meanwhile)
        else:
            ensure_rig(meanwhile=meanwhile)
    except KeyboardInterrupt:
        print("interrupted; what was compiled is kept for the next try", file=sys.stderr)
        raise


def _timeline(objectives: tuple[DemoObjective, ...], total_seconds: float) -> Timeline:
    return Timeline(
        objectives=objectives,
        surge_start_seconds=SURGE_START_RATIO * total_seconds,
        surge_end_seconds=SURGE_END_RATIO * total_seconds,
        tick_seconds=TICK_SECONDS,
    )


def _plan(
    trace: Path, timeline: Timeline, total_seconds: float, *, own_trace: bool
) -> Mapping[str, Any]:
    return {
        "trace": str(trace),
        "scale": RATE_SCALE,
        "start_seconds": TRACE_START_SECONDS if own_trace else 0.0,
        "duration_seconds": total_seconds,
        "surges": [
            {
                "factor": SURGE_FACTOR,
                "start_seconds": timeline.surge_start_seconds,
                "end_seconds": timeline.surge_end_seconds,
            }
        ],
    }


def _watch(console: Console, system: DemoSystem, timeline: Timeline, total_seconds: float) -> None:
    began = time.monotonic()
    log = system.rig.work_dir / "logs" / "operator.log"
    offset = 0
    live = Live(console=console, refresh_per_second=2) if console.is_terminal else None
    with live or contextlib.nullcontext():
        while (elapsed := time.monotonic() - began) < total_seconds:
            lines, offset = _new_decisions(log, offset)
            timeline.decisions += [(elapsed, line) for line in lines]
            timeline.samples.append(_look(system, elapsed))
            if live is not None:
                live.update(view.render(timeline, total_seconds=total_seconds))
            else:
                for line in lines:
                    print(f"{elapsed:6.1f}s {line}", flush=True)
            time.sleep(LOOK_SECONDS)


def _new_decisions(log: Path, offset: int) -> tuple[list[str], int]:
    """Decision lines that the operator logged since an offset, and the new offset."""
    with log.open("rb") as file:
        file.seek(offset)
        data = file.read()
    complete = data[: data.rfind(b"\n") + 1]
    lines = complete.decode(errors="replace").splitlines()
    found = [
        line[line.index(FIRST_DECISION_WORD) :] for line in lines if FIRST_DECISION_WORD in line
    ]
    return found, offset + len(complete)


def _look(system: DemoSystem, elapsed_seconds: float) -> DemoSample:
    traffic, status = system.traffic(), system.status()
    desired, ready = system.replicas()
    engines = traffic["engines"]
    recent = traffic["recent"]
    usages = [e["kv_usage_ratio"] for e in engines if e["kv_usage_ratio"] is not None]
    ttft = _ttft_report(status)
    return DemoSample(
        elapsed_seconds=elapsed_seconds,
        arrival_rate_per_second=recent["arrival_rate_per_second"]
        if recent["seconds"] >= LEAST_RATE_SPAN_SECONDS
        else None,
        running_requests=sum(e["running"] for e in engines),
        waiting_requests=sum(e["waiting"] for e in engines) + traffic["waiting_at_gateway"],
        kv_usage_ratio=sum(usages) / len(usages) if usages else None,
        ttft_p99_seconds=(recent["ttft_seconds"] or {}).get("p99"),
        observed_ttft_seconds=ttft.get("observedSeconds"),
        predicted_ttft_seconds=ttft.get("predictedSeconds"),
        desired_replicas=desired,
        ready_replicas=ready,
        binding=status.get("bindingConstraint"),
    )


def _ttft_report(status: Mapping[str, Any]) -> Mapping[str, Any]:
    reports: list[Mapping[str, Any]] = status.get("observed", {}).get("objectives", [])
    return next((o for o in reports if o["metric"] == "ttft"), {})


@contextlib.contextmanager
def _ending_on_termination() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: through every context manager."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
