"""The part of the status that names the process which decides: one of several shards."""

from pydantic import Field

from servingslo.api.status_base import StatusModel, StatusPart
from servingslo.controller.place import Place
from servingslo.plugins import Key


class ShardStatus(StatusModel):
    """The shard of a resource."""

    index: int = Field(ge=0, description="Number of the shard whose holder decides.")
    moves: int = Field(
        0, ge=0, description="How often the resource was moved from one shard to another."
    )


PART = StatusPart(
    key=Key("shard", Place),
    model=ShardStatus,
    description="Which of several shards decides; absent for shard 0.",
    decided=False,
)
