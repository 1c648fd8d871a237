"""`servingslo plan`: the production planner on recorded observations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from servingslo.cli.manifest import lines_of, read_spec
from servingslo.cli.output import OutputFormat, answer_no, as_json
from servingslo.controller.recordings.recording import Replayed, replay, ticks
from servingslo.controller.recordings.validation import check_tick
from servingslo.errors import InvalidInputError
from servingslo.explain.pools import fleet_text
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
            help="ServingSLO to plan for; the one in the recording's header by default.",
        ),
    ] = None,
    max_replicas: Annotated[
        int | None,
        typer.Option(help="Administrator's largest replica count, if no header has one.", min=1),
    ] = None,
    max_step: Annotated[
        int | None,
        typer.Option(help="Administrator's largest change, if no header has one.", min=1),
    ] = None,
    tick_seconds: Annotated[
        float, typer.Option(help="Seconds between observations, if no header has them.")
    ] = 15.0,
    recommend_only: Annotated[
        bool,
        typer.Option("--recommend-only", help="Decide as in mode Recommend."),
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="json: one decision a line.")
    ] = OutputFormat.JSON,
) -> None:
    """Decide on recorded observations as the operator does: one line in, one decision out.

    The planner keeps its memory from line to line. On a recording of the operator, with its header,
    the decisions are those of the live operator. Each decision is written before the next line is
    read, so a simulator may write the observations and read the decisions. Pools are decided
    together, once each was observed. Exit code 1: according to the last decision, no replica count
    can meet an objective.

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
        for tick in ticks(replay(lines, spec, limits)):
            needs = [need for one in tick for need in one.decision.needs]
            infeasible = any(need.least_feasible is not None for need in needs)
            # typer.echo flushes, which the other end of a pipe waits for.
            typer.echo(_json(tick) if output is OutputFormat.JSON else f"{_text(tick)}\n")
        if infeasible is None:
            raise InvalidInputError("observations", "none", "at least one line")
    if infeasible:
        raise answer_no()


def _json(tick: Sequence[Replayed]) -> str:
    """One line: the decision, or that on all pools."""
    fleet = tick[0].fleet
    return as_json(fleet.only or fleet, indent=None)


def _text(tick: Sequence[Replayed]) -> str:
    told = {one.decision.pool: with_latencies(one.decision, one.sized) for one in tick}
    return fleet_text(tick[0].fleet, told)
