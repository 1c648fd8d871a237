"""The flag of `servingslo run` that lets weights be moved."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.cli.running.feature_flags import Serving
from servingslo.cli.running.switch import Switch


@dataclass(frozen=True, kw_only=True)
class WeightsFlags:
    """Off: weights that were moved are put back."""

    degradation: Annotated[
        Switch,
        typer.Option(
            envvar="SERVINGSLO_DEGRADATION",
            help="Whether weights of an HTTPRoute may be moved to the fallback that a ServingSLO "
            "names.",
        ),
    ] = Switch.OFF


class WeightsMoved:
    """The option that its actuator looks for."""


class WeightsRun:
    """Whether its actuator may write; nothing is started."""

    flags = WeightsFlags
    gives_counts = False

    def options(self, flags: WeightsFlags, _deciders: int) -> WeightsMoved | None:
        """What lets weights be moved."""
        return WeightsMoved() if flags.degradation is Switch.ON else None

    async def start(self, _options: WeightsMoved, _serving: Serving) -> None:
        """Its actuator writes at each tick."""


PART = WeightsRun()
