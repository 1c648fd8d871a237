"""Flags of `servingslo run` for the engines that may be put to sleep."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.adapters.engines.channel import EngineOptions, engine_options
from servingslo.cli.running.feature_flags import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOptions:
    """Whom the operator may speak to, at which port, and whether it may put engines to sleep."""

    engines: EngineOptions
    port: int
    sleeps: bool


@dataclass(frozen=True, kw_only=True)
class WarmFlags:
    """Without a range no engine is asked."""

    warm_replicas: Annotated[
        bool, typer.Option(help="Put engines to sleep for replicas.warm. Off: they are woken.")
    ] = False
    warm_range: Annotated[
        list[str] | None,
        typer.Option(help="Addresses of pods (CIDR) that may sleep; repeatable. None by default."),
    ] = None
    warm_port: Annotated[int, typer.Option(help="Port of their API.", min=1, max=65535)] = 8000


class WarmRun:
    """Whom its actuator may speak to; nothing is started."""

    flags = WarmFlags
    gives_counts = False

    def options(self, flags: WarmFlags, _deciders: int) -> WarmOptions | None:
        """The allowed addresses. Raises: InvalidInputError for a range that is none."""
        if not flags.warm_range:
            return None
        return WarmOptions(
            engines=engine_options("--warm-range", flags.warm_range),
            port=flags.warm_port,
            sleeps=flags.warm_replicas,
        )

    async def start(self, _options: WarmOptions, _serving: Serving) -> None:
        """Its actuator acts on decisions."""


PART = WarmRun()
