"""`servingslo release` for the weights of routes."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.cli.cluster.put_back import FieldRelease, ReleasePart
from servingslo.features.degradation.routes import KIND, weighted_routes


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """Without the search no right to list routes is needed."""

    degradation: Annotated[
        bool, typer.Option(help="Search HTTPRoutes for weights of a fallback.")
    ] = True


PART: ReleasePart = FieldRelease(
    flags=SearchFlags,
    kind=KIND,
    search=weighted_routes,
    said="the former weights are put back",
)
