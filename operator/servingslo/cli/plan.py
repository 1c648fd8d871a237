"""`servingslo plan`: the production planner on recorded observations."""

from pathlib import Path
from typing import Annotated

import typer

from servingslo.cli.manifest import lines_of, read_spec
from servingslo.cli.output import OutputFormat, answer_no, as_json
from servingslo.controller.recording import replay
from servingslo.controller.recording_validation import check_tick
from servingslo.errors import InvalidInputError
from servingslo.explain.text import text
from servingslo.policy.inputs import Limits
from servingslo.policy.report import with_latencies


def plan(
    observations: Annotated[
        str,
        typer.Option(
            "--observations", help="A recording or plain observations, JSON lines; - reads them."
        ),
    ],
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--filename",
            "-f",
            help="ServingSLO to decide by. Without it, the recording's own header.",
        ),
    ] = None,
    max_replicas: Annotated[
        int | None,
        typer.Option(help="Administrator's largest count, where no header has one.", min=1),
    ] = None,
    max_step: Annotated[
        int | None,
        typer.Option(help="Administrator's largest change, where no header has one.", min=1),
    ] = None,
    tick_seconds: Annotated[
        float, typer.Option(help="Time between observations, where no header has it.")
    ] = 15.0,
    recommend_only: Annotated[
        bool, typer.Option("--recommend-only", help="As with the operator in mode Recommend.")
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="json: one decision a line.")
    ] = OutputFormat.JSON,
) -> None:
    """Decide on recorded observations as the operator does: one line in, one decision out.

    What the planner remembers is carried from line to line; on a recording of the operator with
    its header the decisions are the live ones. Each decision is written before the next line is
    read, so another program's simulator may be at both ends. Exit code 1: by the last decision, no
    count can meet an objective.

    Example: servingslo plan -f slo.yaml --observations recording.jsonl -o text
    """
    spec = None if manifest is None else read_spec(manifest)
    limits = Limits(
        recommend_only=recommend_only,
        max_replicas=max_replicas,
        max_step=max_step,
        tick_seconds=check_tick(tick_seconds, "--tick-seconds"),
    )
    infeasible: bool | None = None
    with lines_of(observations, "--observations") as lines:
        for replayed in replay(lines, spec, limits):
            decision = replayed.decision
            infeasible = any(need.least_feasible is not None for need in decision.needs)
            # typer.echo flushes, which the other end of a pipe waits for.
            if output is OutputFormat.JSON:
                typer.echo(as_json(decision, indent=None))
            else:
                typer.echo(f"{text(with_latencies(decision, replayed.sized))}\n")
        if infeasible is None:
            raise InvalidInputError("observations", "none", "at least one line")
    if infeasible:
        raise answer_no()
