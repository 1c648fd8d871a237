"""Flags of `servingslo run` for the servers that the operator may speak to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from servingslo.adapters.engines.channel import EngineOptions, engine_options
from servingslo.cli.running.feature_flags import Serving


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Without a range no server is asked."""

    engine_range: Annotated[
        list[str] | None,
        typer.Option(
            help="Addresses of pods that the operator may connect to (CIDR), to read limits of "
            "dynamic batches on Triton, and with --batching-apply to set them; repeatable. None "
            "by default."
        ),
    ] = None
    engine_keys_directory: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_ENGINE_KEYS_DIRECTORY",
            help="Folder with a file for each namespace: name=value of the header that its servers "
            "require when limits are set.",
        ),
    ] = None


class ServersRun:
    """Whom its actuator may speak to; nothing is started."""

    flags = ServerFlags
    gives_counts = False

    def options(self, flags: ServerFlags, _deciders: int) -> EngineOptions | None:
        """The allowed addresses. Raises: InvalidInputError for a range that is none."""
        if not flags.engine_range:
            return None
        return engine_options("--engine-range", flags.engine_range, flags.engine_keys_directory)

    async def start(self, _options: EngineOptions, _serving: Serving) -> None:
        """Its actuator asks at each tick."""


PART = ServersRun()
