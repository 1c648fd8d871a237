"""`servingslo release` for the weights of routes."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.cli.cluster.put_back import ReleasePart, put_back_fields
from servingslo.features.degradation.routes import KIND, weighted_routes


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """Without the search no right to list routes is needed."""

    degradation: Annotated[
        bool, typer.Option(help="Search HTTPRoutes for weights of a fallback.")
    ] = True


class WeightsRelease:
    """The owners' weights in every route."""

    flags = SearchFlags

    async def put_back(self, client: KubeClient, namespaces: tuple[str, ...]) -> list[str]:
        """Restore them; what could not be."""
        routes = weighted_routes(client, namespaces=namespaces)
        said = "the former weights are put back"
        return (await put_back_fields(KIND, routes, lambda _: said))[1]


PART: ReleasePart = WeightsRelease()
