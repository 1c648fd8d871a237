"""The `servingslo` command: one thin function for each subcommand, imported when it is called."""

import io
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from servingslo import __version__
from servingslo.cli.lazy import LazyGroup
from servingslo.errors import InvalidInputError, ServingSLOError

BAD_INPUT_EXIT_CODE = 2
FAILURE_EXIT_CODE = 1
# Of a shell, for a command that a signal ended: 128 and the signal's number (POSIX, 2.8.2).
_SIGNAL_EXIT_CODE = 128

app = typer.Typer(
    cls=LazyGroup,
    name="servingslo",
    help="Keeps the latency objectives of LLM and model servers at the least cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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
    runtime_profiles: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_RUNTIME_PROFILES",
            help="File with the runtimes that the administrator adds or changes.",
        ),
    ] = None,
) -> None:
    if runtime_profiles is not None:
        # Help and small commands start without pydantic.
        from servingslo.cli.manifest import add_runtimes  # noqa: PLC0415

        add_runtimes(runtime_profiles)


def main() -> None:
    """Entry point: turn the package's own errors into one line and an exit code."""
    # The first process of a container gets no signal that it does not handle: without this, SIGTERM
    # before the command handles it has no effect, and a pod takes its whole grace period to end.
    before = signal.signal(
        signal.SIGTERM, lambda number, _frame: sys.exit(_SIGNAL_EXIT_CODE + number)
    )
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 has no ≤: a question mark is better than nothing at all.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except ServingSLOError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        bad_input = isinstance(error, InvalidInputError)
        sys.exit(BAD_INPUT_EXIT_CODE if bad_input else FAILURE_EXIT_CODE)
    except OSError as error:
        # A full disk behind standard output, or a file that went away in between.
        where = "" if error.filename is None else f"{error.filename}: "
        typer.secho(f"error: {where}{error.strerror or error}", err=True, fg=typer.colors.RED)
        sys.exit(FAILURE_EXIT_CODE)
    finally:
        signal.signal(signal.SIGTERM, before)
