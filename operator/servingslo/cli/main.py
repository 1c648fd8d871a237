"""The `servingslo` command: one thin function for each subcommand."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from servingslo import __version__
from servingslo.cli.demo.command import demo
from servingslo.cli.run import run
from servingslo.cli.schema import schema
from servingslo.errors import InvalidInputError, ServingSLOError

BAD_INPUT_EXIT_CODE = 2
FAILURE_EXIT_CODE = 1

app = typer.Typer(
    name="servingslo",
    help="Keeps the latency objectives of LLM and model servers at the least cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"servingslo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


app.command()(run)
app.command()(demo)
app.command()(schema)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition.

    Example: servingslo crd | kubectl apply --server-side -f -
    """
    from servingslo.api.crd import render_crd  # noqa: PLC0415  commands import what they need

    typer.echo(render_crd())


def main() -> None:
    """Entry point: turn the package's own errors into one line and an exit code."""
    try:
        app()
    except InvalidInputError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(BAD_INPUT_EXIT_CODE)
    except ServingSLOError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False)
        sys.exit(FAILURE_EXIT_CODE)
