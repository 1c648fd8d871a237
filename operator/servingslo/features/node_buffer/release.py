"""`servingslo release` for the replicas of CapacityBuffers."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.cli.cluster.put_back import FieldRelease, ReleasePart
from servingslo.features.node_buffer.buffers import KIND, capacity_buffers


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """Without the search no right to list CapacityBuffers is needed."""

    node_buffers: Annotated[
        bool, typer.Option(help="Search CapacityBuffers for replicas that were set ahead.")
    ] = True


PART: ReleasePart = FieldRelease(
    flags=SearchFlags,
    kind=KIND,
    search=capacity_buffers,
    said="the former replicas are put back",
)
