"""`servingslo demo`: start the whole system, replay a trace with a surge, watch, sum up."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from servingslo.adapters.clock import SystemClock
from servingslo.api.convert import targets_from_spec
from servingslo.cli.manifest import read_spec
from servingslo.errors import InvalidInputError
from servingslo.units import SECONDS_PER_MINUTE, format_duration
from servingslo_lab.cli.demo import dashboard, playback, report, story, view
from servingslo_lab.cli.demo.batch_limits import run_limits
from servingslo_lab.cli.demo.classes.run import run_classes
from servingslo_lab.cli.demo.disaggregated.run import run_disaggregated
from servingslo_lab.cli.demo.engines.llm_d_sim import run_llm_d_sim
from servingslo_lab.cli.demo.engines.triton import run_triton
from servingslo_lab.cli.demo.flash_crowd import run_crowd
from servingslo_lab.cli.demo.scenarios import NEEDS, DemoEngine, Scenario
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
from servingslo_lab.cli.sizing.answer import Question, sized
from servingslo_lab.cli.sizing.inputs import busiest_minute_per_second, traced_workload
from servingslo_lab.rig.build import resolve_tools
from servingslo_lab.rig.programs.versions import DEFAULT_TOOLS
from servingslo_lab.rig.simulated.engine_pods import DEFAULT_KIND
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.traces.trace import read_trace
from servingslo_lab.sim.traces.transforms import window

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
LOOK_SECONDS = 1.0
FIRST_DECISION_WORD = "decided "
# A shorter trace is followed by silence: rates and latencies are of the last half minute.
LEAST_RUN_SECONDS = SECONDS_PER_MINUTE
# Requests in flight at the end may finish within this time; those that do not are missed.
GRACE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the demo replays, and how long it runs. notes: of the user's trace, said at the start.

    surge: its start and end in seconds; None in a trace of the user. traffic: fields of a plan.
    """

    seconds: float
    surge: tuple[float, float] | None
    traffic: Mapping[str, Any]
    notes: Sequence[str] = ()

    def timeline(self, objectives: tuple[DemoObjective, ...]) -> Timeline:
        """An empty timeline of this run."""
        start, end = self.surge or (None, None)
        return Timeline(
            objectives=objectives,
            surge_start_seconds=start,
            surge_end_seconds=end,
            tick_seconds=TICK_SECONDS,
        )


def surge_run(trace: Path, seconds: float) -> Run:
    """The demo's own traffic: a part of the Azure trace, with a surge."""
    start, end = SURGE_START_RATIO * seconds, SURGE_END_RATIO * seconds
    surge = {"factor": SURGE_FACTOR, "start_seconds": start, "end_seconds": end}
    traffic = {
        "trace": str(trace.resolve()),
        "scale": RATE_SCALE,
        "start_seconds": TRACE_START_SECONDS,
        "duration_seconds": seconds,
        "surges": [surge],
    }
    return Run(seconds=seconds, surge=(start, end), traffic=traffic)


def trace_run(path: Path, seconds: float, example: Path) -> Run:
    """A user's trace as it is, until it ends; a request at its very end is left out.

    example: folder of the workload that serves it. Raises: InvalidInputError for no trace.
    """
    trace = read_trace(path, "--trace")
    replayed = min(seconds, trace.duration_seconds)
    run_seconds = max(replayed, LEAST_RUN_SECONDS)
    notes = [f"{path.name} is replayed as it is: no surge, no change of its rate"]
    lasts = f"{path.name} lasts {_rounded(trace.duration_seconds)}"
    if run_seconds < seconds:
        notes.append(f"{lasts}: the demo ends after {_rounded(run_seconds)}")
    elif replayed < trace.duration_seconds:
        notes.append(f"{lasts}: only its first {_rounded(seconds)} are replayed")
    busy = busiest_minute_per_second(window(trace, 0.0, replayed))
    short = _too_few_replicas(path, busy, example)
    return Run(
        seconds=run_seconds,
        surge=None,
        traffic={"trace": str(path.resolve()), "duration_seconds": replayed},
        notes=[*notes, *([short] if short else [])],
    )


def _rounded(seconds: float) -> str:
    return format_duration(round(seconds))


def _too_few_replicas(path: Path, rate_per_second: float, example: Path) -> str | None:
    """What the demo's fleet cannot serve at this rate, by the planner's own sizing; or None."""
    targets = targets_from_spec(read_spec(example / "servingslo.yaml"))
    kind = engine_kind(DEFAULT_KIND)
    question = Question(
        workload=traced_workload(path, rate_per_second, cached_ratio=0.0, dispersion=1.0),
        law=kind.law,
        limits=kind.limits,
        objectives=targets.objectives,
        replicas=targets.replicas,
    )
    missed = "objectives will be missed"
    try:
        _, sizing = sized(question)
    except InvalidInputError:
        return f"its requests are too long for the demo's engines: {missed}"
    busiest = f"its busiest minute ({rate_per_second:.3g} requests/s)"
    if any(need.replicas is None for need in sizing.needs):
        return f"no number of the demo's replicas can keep the objectives of {busiest}: {missed}"
    most = targets.replicas.maximum
    if most is None or sizing.replicas <= most:
        return None
    return f"{busiest} needs {sizing.replicas} replicas, the demo has {most} at most: {missed}"


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
        typer.Option(help="A trace to replay as it is, instead of the Azure one with a surge."),
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
    engine: Annotated[
        DemoEngine,
        typer.Option(help="Of surge: our simulated engines, or llm-d-inference-sim's processes."),
    ] = DemoEngine.SIMULATED,
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
    real = engine is DemoEngine.LLM_D_SIM
    if real and (trace is not None or scenario is not Scenario.SURGE):
        allowed = f"only with --scenario {Scenario.SURGE} and without --trace"
        raise InvalidInputError("--engine", engine.value, allowed)
    seconds = minutes * SECONDS_PER_MINUTE
    surge = surge_run(root / TRACE, seconds)
    # A bad file is an error before anything starts.
    run = surge if trace is None else trace_run(trace, seconds, root / EXAMPLE)
    with _ending_on_termination():
        _build(root, engine if real else scenario)
    with _ending_on_termination(out):
        if real:
            print(run_llm_d_sim(root, minutes=minutes, out=out, tell=Reporter()))
        elif scenario is Scenario.SURGE:
            _run(root, run, out, Reporter())
        elif scenario is Scenario.FLASH_CROWD:
            print(
                run_crowd(
                    root, minutes=minutes, seed=seed, out=out, reaches_envoy=not no_policy,
                    tell=Reporter(),
                )
            )  # fmt: skip
        elif scenario is Scenario.BATCH_LIMITS:
            print(run_limits(root, minutes=minutes, seed=seed, out=out, tell=Reporter()))
        elif scenario is Scenario.TRITON:
            print(run_triton(root, minutes=minutes, out=out, tell=Reporter()))
        elif scenario is Scenario.DISAGGREGATED:
            print(run_disaggregated(root, minutes=minutes, seed=seed, out=out, tell=Reporter()))
        else:
            print(run_classes(root, minutes=minutes, seed=seed, out=out, tell=Reporter()))


def _run(root: Path, run: Run, out: Path, tell: Reporter) -> None:
    """Start the system, replay, watch, and write summary and pictures."""
    for note in run.notes:
        tell(note)
    console = Console()
    with demo_system(root, tell=tell) as system:
        # `make demo` runs a program that is on no path.
        program = sys.argv[0] if Path(sys.argv[0]).name == "servingslo" else "servingslo"
        tell(
            f"to look for yourself: export KUBECONFIG={system.rig.admin_kubeconfig}; "
            f"{program} top; {program} explain {system.namespace}/{system.name}; "
            f"Prometheus is at {system.rig.prometheus_url}"
        )
        timeline = run.timeline(system.objectives())
        system.begin_traffic(run.traffic)
        began, began_unix = time.monotonic(), SystemClock.now_seconds()
        _watch(console, system, timeline, run.seconds)
        ended_unix = SystemClock.now_seconds()
        _wait_for_requests(system, tell)
        truth = system.truth()
        use = system.operator_use(time.monotonic() - began)
        text = report.summary(timeline, truth, use)
        written = [*report.write(out, timeline, text), *story.write(out, timeline)]
        console.print(text, markup=False, highlight=False)
        panels = system.dashboard(root, began_unix, ended_unix)
        written += dashboard.write(out, panels)
    for path in written:
        console.print(f"wrote {path}", markup=False, highlight=False)


def _wait_for_requests(system: DemoSystem, tell: Reporter) -> None:
    """Wait for the requests in flight, which would otherwise count as missed."""
    left = system.in_flight()
    if left:
        tell(f"waiting for {left} requests in flight, at most {GRACE_SECONDS:.0f}s")
    end = time.monotonic() + GRACE_SECONDS
    while system.in_flight() and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def _build(root: Path, scenario: Scenario | DemoEngine) -> None:
    """Build what it lacks; meanwhile the planner is played on the demo's traffic."""
    traffic = surge_run(root / TRACE, PLAYED_SECONDS).traffic

    def meanwhile(say: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        return playback.played(root / EXAMPLE, TICK_SECONDS, traffic, say)

    try:
        resolve_tools(*NEEDS.get(scenario, (DEFAULT_TOOLS,)), meanwhile=meanwhile)
    except KeyboardInterrupt:
        print("interrupted; what was compiled is kept for the next try", file=sys.stderr)
        raise


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
def _ending_on_termination(out: Path | None = None) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the demo through every context manager.

    A shell starts background jobs with SIGINT ignored, and Python leaves that so: `make demo &` and
    `fg` would go on. out: the folder of results, of which an interruption says what it holds.
    """

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)}
    began_unix = SystemClock.now_seconds()
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            print(interrupted(out, began_unix), file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def interrupted(out: Path, began_unix: float) -> str:
    """What a folder of results holds after an interruption of a run that began then."""
    files = sorted(path for path in out.glob("*") if path.is_file())
    written = [path.name for path in files if path.stat().st_mtime >= began_unix]
    if written:
        return f"interrupted; of this run {out}/ has only {', '.join(written)}"
    earlier = f"; what is in {out}/ is of an earlier run" if files else ""
    return f"interrupted; nothing was written{earlier}"
