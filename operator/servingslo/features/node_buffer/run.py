"""The flag of `servingslo run` that lets node buffers be written."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.api.constraints import MAX_REPLICAS
from servingslo.cli.running.feature_flags import Serving


@dataclass(frozen=True, kw_only=True)
class BufferFlags:
    """0: buffers that were written are put back."""

    node_buffer_max_replicas: Annotated[
        int,
        typer.Option(
            envvar="SERVINGSLO_NODE_BUFFER_MAX_REPLICAS",
            help="Most replicas of a CapacityBuffer that a ServingSLO names; 0 writes none.",
            min=0,
            max=MAX_REPLICAS,
        ),
    ] = 0


class BuffersRun:
    """Whether its actuator may write; nothing is started."""

    flags = BufferFlags
    gives_counts = False

    def options(self, flags: BufferFlags, _deciders: int) -> BufferFlags | None:
        """The flags, which let buffers be written."""
        return flags if flags.node_buffer_max_replicas > 0 else None

    async def start(self, _options: BufferFlags, _serving: Serving) -> None:
        """Its actuator writes at each tick."""


PART = BuffersRun()
