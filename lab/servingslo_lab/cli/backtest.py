"""`servingslo backtest`: replay a trace against policies, before any of them acts."""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from servingslo.cli.options import (
    Context,
    GatewayNamespaceLabel,
    GatewayPattern,
    GatewayProfileName,
    GatewayReporter,
    GatewayWorkloadLabel,
    Kubeconfig,
)
from servingslo.cli.output import (
    OutputFormat,
    answer_no,
    as_json,
)
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.errors import InvalidInputError
from servingslo.policy.replicas.bounds_in_force import change_over_time
from servingslo.runtimes.gateway_catalogue import NO_GATEWAY, gateway_profile
from servingslo_lab.cli.backtesting.inputs import (
    LARGEST_SCALE,
    MOST_PROCESSES,
    MOST_SEEDS,
    Inputs,
    check_objectives_of_pools,
    default_cache,
    default_processes,
    stated_fleet,
    stated_policies,
    stated_policies_of_pools,
    stated_pool_targets,
    stated_targets,
    with_cold,
)
from servingslo_lab.cli.backtesting.page import page
from servingslo_lab.cli.backtesting.report import Report, report_of
from servingslo_lab.cli.backtesting.text import policies_text, report_text
from servingslo_lab.cli.backtesting.traces import (
    TraceSource,
    check_dated,
    check_requests_left,
    replay_of,
)
from servingslo_lab.cli.options import (
    GatewayName,
    check_read_back,
    check_writable,
    written_whole,
)
from servingslo_lab.cli.sizing.inputs import in_range
from servingslo_lab.sim.backtest import run, runs_of
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.policies import ORACLE
from servingslo_lab.sim.pools.together import check_trace
from servingslo_lab.sim.scenario import Cell, Scenario


@asks_prometheus()
def backtest(
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV of requests: TIMESTAMP,ContextTokens,GeneratedTokens as Azure publishes, or "
            "arrival_seconds,prompt_tokens,output_tokens."
        ),
    ] = None,
    recording: Annotated[
        str | None,
        typer.Option(help="Instead: a recording of `servingslo record`; its requests are rebuilt."),
    ] = None,
    resource: Annotated[
        str | None, typer.Option(help="NAMESPACE/NAME in a recording of several.")
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            "--prometheus",
            "--prometheus-url",
            help="Instead: address of Prometheus; requests are rebuilt from its memory.",
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the target, for --prometheus.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="KIND/NAME of the workload, for --prometheus.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="How far back to read Prometheus; 1h by default.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(help="Time between readings, not below the scrape interval; 15s by default."),
    ] = None,
    asking: PrometheusFlags = PrometheusFlags(),
    gateway_profile_name: GatewayProfileName = NO_GATEWAY,
    gateway_workload_label: GatewayWorkloadLabel = "",
    gateway_namespace_label: GatewayNamespaceLabel = "",
    gateway_reporter: GatewayReporter = "",
    gateway_pattern: GatewayPattern = "",
    gateway_name: GatewayName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    save_trace: Annotated[
        Path | None, typer.Option(help="Where a rebuilt trace is kept, as CSV.")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            "--past",
            help="CSV of requests before the trace, or of --save-history: the planner is told the "
            "rates, as Prometheus would tell it. With --prometheus, and of a recording, they are "
            "read by themselves; of a trace of 2h or more they are those of its first half.",
        ),
    ] = None,
    save_history: Annotated[
        Path | None, typer.Option(help="Where the rates before the trace are kept, as CSV.")
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Tell the planner of no past; play all.")
    ] = False,
    warm_up: Annotated[
        str | None,
        typer.Option(
            help="The first part of the trace, such as 7d: history, neither run nor scored."
        ),
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option("--filename", "-f", help="ServingSLO with the objectives.")
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="Instead of -f: METRIC:pPERCENTILE:THRESHOLD, such as ttft:p99:1s."),
    ] = None,
    fleet: Annotated[
        str,
        typer.Option(
            help="YAML file of the fleet, or of its pools; or a known engine: h100-8b, l4-small."
        ),
    ] = "h100-8b",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME, NAME:tuned or NAME:key=value,…; repeat it. --list-policies names them."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help=f"How many runs of each, 1 to {MOST_SEEDS}, for confidence.")
    ] = 1,
    scale: Annotated[
        float, typer.Option(help="Times the trace's rate, by copies of it laid over each other.")
    ] = 1.0,
    against_oracle: Annotated[
        bool,
        typer.Option("--against-oracle", help="Also find the clairvoyant schedule, and compare."),
    ] = False,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold",
            help="Begin with the fleet's initial_replicas, not with what the first minutes need.",
        ),
    ] = False,
    page_file: Annotated[
        Path | None, typer.Option("--html", help="Write a report with pictures to this file.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time; the number of cores by default.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where runs are kept, so that a stopped call can go on.")
    ] = None,
    list_policies: Annotated[
        bool, typer.Option("--list-policies", help="Name the policies with their settings.")
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="How the result is written.")
    ] = OutputFormat.TEXT,
) -> None:
    """Replay a trace against policies: the planner, other autoscalers' rules, fixed counts.

    The planner is the operator's own. Runs are kept, so the same call goes on where it was
    stopped. Exit code 1: with --against-oracle, no schedule meets the objectives.

    Example: servingslo backtest --trace examples/traces/azure_llm_2023_conversation.csv --scale 8
    --objective ttft:p99:1s --objective tpot:p95:50ms --seeds 3 --html report.html
    """
    if list_policies:
        typer.echo(policies_text())
        return
    in_range("--seeds", seeds, 1, MOST_SEEDS, f"1 to {MOST_SEEDS}")
    in_range("--scale", scale, 1e-3, LARGEST_SCALE, f"0.001 to {LARGEST_SCALE:g}")
    workers = default_processes() if processes is None else processes
    in_range("--processes", workers, 1, MOST_PROCESSES, f"1 to {MOST_PROCESSES}")
    if page_file is not None:
        check_writable(page_file, "--html")
    stated = stated_fleet(fleet)
    pools = None if isinstance(stated, FleetSpec) else stated
    known_fleet = stated if isinstance(stated, FleetSpec) else next(iter(stated.fleets.values()))
    targets = stated_targets(manifest, objective or [])
    pool_targets = stated_pool_targets(manifest, fleet, stated)
    if pools is None:
        policies = stated_policies(policy or [], known_fleet.engine, against_oracle=against_oracle)
    else:
        policies = stated_policies_of_pools(policy or [], pools, against_oracle=against_oracle)
        check_objectives_of_pools(targets, pools, policies)
    kept = cache or default_cache()
    if kept.exists() and not kept.is_dir():
        raise InvalidInputError("--cache", str(kept), "a folder")
    check_read_back(prometheus, window, step)
    source = TraceSource(
        file=trace,
        recording=recording,
        resource=resource,
        prometheus=prometheus,
        namespace=namespace,
        target=target,
        window=window or "1h",
        step=step or "15s",
        asking=asking,
        gateway=gateway_profile(
            gateway_profile_name,
            workload_label=gateway_workload_label,
            namespace_label=gateway_namespace_label,
            reporter=gateway_reporter,
            pattern=gateway_pattern,
        ),
        gateway_name=gateway_name,
        kubeconfig=kubeconfig,
        context=context,
        save=save_trace,
        history=history,
        save_history=save_history,
        no_history=no_history,
        warm_up=warm_up,
    )
    replay = replay_of(source, kept, scale)
    check_requests_left(replay, scale)
    every = [targets, *(pool.targets for pool in (pool_targets.pools if pool_targets else ()))]
    timed = any(map(change_over_time, every))
    if timed:
        check_dated(replay)
    if pools is not None:
        check_trace(replay.trace)
    scenario = Scenario(
        name=replay.path.stem,
        fleet=known_fleet,
        trace_path=str(replay.path),
        skipped_seconds=replay.skipped_seconds,
        scale=scale,
        targets=targets,
        warm=not cold,
        past=replay.past,
        pools=pools,
        pool_targets=pool_targets,
    )
    if not policy and replay.past is not None and not timed:
        policies = with_cold(policies)
    inputs = Inputs(
        scenario=scenario,
        policies=tuple(policies),
        seeds=tuple(range(1, seeds + 1)),
        against_oracle=against_oracle or any(p.name == ORACLE for p in policies),
        request_count=round(replay.request_count * scale),
        duration_seconds=replay.duration_seconds,
    )
    found = _run(inputs, workers, kept)
    if page_file is not None:
        with written_whole(page_file, "--html") as part:
            part.write_text(page(found), encoding="utf-8")
    typer.echo(as_json(found.result) if output is OutputFormat.JSON else report_text(found))
    if inputs.against_oracle and ORACLE not in {one.policy for one in found.result.policies}:
        raise answer_no()


def _run(inputs: Inputs, processes: int, cache: Path) -> Report:
    cells = inputs.cells
    with _progress(runs_of(cells)) as done:
        outcomes = run(cells, cache, processes=min(processes, len(cells)), done=done)
    return report_of(inputs, outcomes)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Cell], None]]:
    """A bar on standard error where that is a terminal; in a pipe, a line for each run."""
    if not sys.stderr.isatty():
        began, finished = time.monotonic(), itertools.count(1)
        typer.echo(f"backtest: {total} {'run' if total == 1 else 'runs'}", err=True)
        yield lambda cell: typer.echo(
            f"backtest: {next(finished)} of {total} done after {time.monotonic() - began:.0f} s: "
            f"{cell.policy.label}, seed {cell.seed}",
            err=True,
        )
        return
    from rich.console import Console  # noqa: PLC0415 - not needed in a pipe
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def done(cell: Cell) -> None:
            bar.update(task, advance=1, description=f"{cell.policy.label}, seed {cell.seed}")

        yield done
