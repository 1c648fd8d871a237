"""What `servingslo release` puts back of batch limits: those that one pod has on trial."""

from dataclasses import dataclass
from typing import Annotated

import typer

from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.cli.cluster.put_back import ReleasePart, put_back_each
from servingslo.features.batch_limits.pod_template import BatchCanaries, CanaryTarget


@dataclass(frozen=True, kw_only=True)
class CanaryFlags:
    """Without it no workload is read."""

    canaries: Annotated[
        bool, typer.Option(help="Search workloads for batch limits that one pod has on trial.")
    ] = True


class CanaryRelease:
    """Takes back every canary."""

    flags = CanaryFlags

    async def put_back(self, client: KubeClient, namespaces: tuple[str, ...]) -> list[str]:
        """End each canary, and say so; what could not be."""
        canaries = BatchCanaries(client, namespaces=namespaces)

        async def end(target: CanaryTarget) -> str:
            if target.canary is None:
                return "ended by another client"
            if target.edited:
                await canaries.complete(target, released=True)
                return "its template was changed meanwhile, which stays"
            await canaries.take_back(target, "", released=True)
            return f"max_num_seqs {target.canary.after[0]} -> {target.canary.before[0]}"

        standing = canaries.standing()
        return (await put_back_each("batch limits", standing, end, canaries.again))[1]


PART: ReleasePart = CanaryRelease()
