"""The flag of `servingslo run` for several processes that decide, and how they are elected."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from servingslo.cli.running.feature_flags import Deciders, ElectionOf, MakeLeadership
from servingslo.errors import InvalidInputError
from servingslo.features.shards.placement import MOST_SHARDS


@dataclass(frozen=True, kw_only=True)
class ShardFlags:
    """With one shard there is one leader."""

    shards: Annotated[
        int,
        typer.Option(
            envvar="SERVINGSLO_SHARDS",
            help="Number of Leases among whose holders the ServingSLOs are divided; above 1 only "
            "with a Lease.",
            min=1,
            max=MOST_SHARDS,
        ),
    ] = 1


class ShardLead:
    """Elects by the Leases of all shards, also of those that there were before."""

    flags = ShardFlags

    def deciders(self, flags: ShardFlags, /, *, alone: bool) -> Deciders:
        """One for each shard. Raises: InvalidInputError for several without a Lease."""
        if flags.shards > 1 and alone:
            raise InvalidInputError("--shards", flags.shards, "1 without --lease-namespace")
        # The clients take a second to import, which no other command needs.
        from servingslo.features.shards.leadership import name_shard  # noqa: PLC0415

        return Deciders(
            count=flags.shards,
            leadership=partial(_leadership, flags.shards),
            note=name_shard if flags.shards > 1 else None,
        )


def _leadership(
    shards: int, election_of: ElectionOf, busy: Callable[[int], bool]
) -> MakeLeadership:
    from servingslo.features.shards.leadership import ShardLeadership  # noqa: PLC0415
    from servingslo.features.shards.leases import ANNOTATION, ShardLeases  # noqa: PLC0415

    states = {ANNOTATION: None if shards == 1 else str(shards)}
    leases = ShardLeases(
        count=shards,
        # Shard 0 has the Lease without a number.
        election_of=lambda shard: election_of(f"-{shard}" if shard else "", states),
        line=election_of("-next", states),
        busy=busy,
    )
    return partial(ShardLeadership, leases=leases)


PART = ShardLead()
