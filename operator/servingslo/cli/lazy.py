"""Commands that are imported when they are used, so that help and small commands start fast."""

from dataclasses import dataclass
from importlib import import_module
from inspect import getdoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from servingslo.cli import lab
from servingslo.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The line that the list of commands has for a command, and where its function is.

    module: None for a command of servingslo-lab, which is found by its entry point.
    """

    summary: str
    module: str | None = None


COMMANDS: dict[str, Entry] = {
    "run": Entry(
        module="servingslo.cli.running.run", summary="Run the operator until it is stopped."
    ),
    "demo": Entry(
        summary="Run the system on this machine, with simulated engines.",
    ),
    "size": Entry(
        summary="Size a fleet: replicas that the objectives need, and their cost.",
    ),
    "plan": Entry(
        module="servingslo.cli.plan",
        summary="Repeat the operator's decisions on recorded observations.",
    ),
    "fit": Entry(
        summary="Fit the service law of an engine to its measurements.",
    ),
    "backtest": Entry(
        summary="Replay a trace against policies: share in SLO against cost.",
    ),
    "shadow": Entry(
        summary="Compare an HPA or a ScaledObject with ServingSLO on the past.",
    ),
    "explain": Entry(
        module="servingslo.cli.cluster.explain",
        summary="Explain the last decision about a ServingSLO of a cluster.",
    ),
    "top": Entry(
        summary="Show all ServingSLOs of a cluster and keep the table fresh.",
    ),
    "history": Entry(
        summary="Show the last day of a ServingSLO, from Prometheus.",
    ),
    "record": Entry(
        module="servingslo.cli.cluster.record",
        summary="Record the operator's observations of a cluster.",
    ),
    "release": Entry(
        module="servingslo.cli.cluster.release",
        summary="Put back every bound that was written into a gateway.",
    ),
    "migrate": Entry(
        summary="Write a ServingSLO from an HPA, a ScaledObject or a PodAutoscaler.",
    ),
    "crd": Entry(module="servingslo.cli.schema", summary="Print the CustomResourceDefinition."),
    "schema": Entry(
        module="servingslo.cli.schema",
        summary="Print the JSON schema of a file format.",
    ),
}


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and summary, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name=name, help=entry.summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command to run, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else _loaded(name), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; one that is not installed says which distribution has it."""
        for name, entry in COMMANDS.items():
            if entry.module is None and not lab.installed(lab.COMMANDS, name):
                self.commands[name].help = f"Not installed: {lab.DISTRIBUTION} has it."
        super().format_commands(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """What the command returns. Raises: InvalidInputError for a value that it does not take."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            refusal = _refusal(error)
            if refusal is None:
                raise
            raise refusal from error


def _loaded(name: str) -> Any:
    module = COMMANDS[name].module
    if module is None:
        function = lab.loaded(lab.COMMANDS, name, name)
    else:
        function = getattr(import_module(module), name)
    # Rich's tables cut long flags and texts where the terminal is narrow; plain text is whole.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, help=_help(getdoc(function) or ""))(function)
    return get_command(app)


def _help(text: str) -> str:
    """The text with its example on one line, however narrow the terminal: it is there to be copied.

    Click wraps no paragraph that begins with a backspace.
    """
    paragraphs = [
        f"\b\n{' '.join(paragraph.split())}" if paragraph.startswith("Example:") else paragraph
        for paragraph in text.split("\n\n")
    ]
    return "\n\n".join(paragraphs)


def _refusal(error: typer.BadParameter) -> InvalidInputError | None:
    """What other refusals tell as well: flag, value and range; None where the value is unknown."""
    # Needed for an error alone; help and small commands start without pydantic.
    from pydantic import ValidationError  # noqa: PLC0415

    from servingslo.api.refusals import first_refusal  # noqa: PLC0415

    cause, parameter = error.__cause__, error.param
    if parameter is None or not isinstance(cause, ValidationError):
        return None
    told = first_refusal(cause, "")
    flag = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
    # Of a choice: "'x' is not one of 'a', 'b'."
    allowed = told.allowed.rpartition(" is not ")[2].removesuffix(".")
    if cause.errors()[0]["type"] in {"greater_than_equal", "less_than_equal"}:
        allowed = _whole_range(parameter) or allowed
    return InvalidInputError(flag or "", told.value, allowed)


def _whole_range(parameter: Any) -> str:
    """Both bounds of a number, where pydantic names the broken one; '' if there is one bound."""
    low, high = (getattr(parameter, bound, None) for bound in ("min", "max"))
    return "" if low is None or high is None else f"from {low:.12g} to {high:.12g}"
