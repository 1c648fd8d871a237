"""`servingslo release` for the replicas of CapacityBuffers."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.cli.cluster.put_back import ReleasePart, put_back_fields
from servingslo.features.node_buffer.buffers import KIND, capacity_buffers


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """Without the search no right to list CapacityBuffers is needed."""

    node_buffers: Annotated[
        bool, typer.Option(help="Search CapacityBuffers for replicas that were set ahead.")
    ] = True


class BuffersRelease:
    """The owners' replicas in every buffer."""

    flags = SearchFlags

    async def put_back(self, client: KubeClient, namespaces: tuple[str, ...]) -> list[str]:
        """Restore them; what could not be."""
        buffers = capacity_buffers(client, namespaces=namespaces)
        said = "the former replicas are put back"
        return (await put_back_fields(KIND, buffers, lambda _: said))[1]


PART: ReleasePart = BuffersRelease()
