"""`servingslo release`: puts back what the operator wrote for a while, without the operator."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated

import typer

from servingslo.adapters.kubernetes.api.client import KubeClient, connect
from servingslo.adapters.kubernetes.api.marked_objects import RELEASED_SECONDS
from servingslo.adapters.kubernetes.gateways.limits import (
    LIMIT_FORMS,
    LimitHolder,
    limit_holders,
)
from servingslo.cli.cluster.put_back import RELEASE, asks_features, put_back_fields
from servingslo.cli.options import Context, Kubeconfig, path_text
from servingslo.errors import ClusterError, InvalidInputError
from servingslo.policy.inputs import LimitKind


@asks_features
def release(
    everything: Annotated[
        bool, typer.Option("--all", help="Put back everything; required.")
    ] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="Namespace to search; repeatable. All by default."),
    ] = None,
    admission_kind: Annotated[
        list[LimitKind] | None,
        typer.Option(
            help="Kind of object to search, as in `servingslo run`; repeatable. All by default."
        ),
    ] = None,
    features: Mapping[str, bool] = MappingProxyType({}),
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Restore the value from before each bound that the operator wrote into a gateway's object.

    What features wrote is put back as well. A running operator leaves these objects alone for the
    next ten minutes.

    Example: servingslo release --all
    """
    if not everything:
        raise InvalidInputError("--all", None, "--all, which confirms that everything is put back")
    kinds = frozenset(admission_kind or LimitKind)
    names = tuple(namespace or ())
    asyncio.run(
        _release(
            path_text(kubeconfig),
            context,
            names,
            kinds,
            features=features,
        )
    )


async def _release(
    kubeconfig: str | None,
    context: str | None,
    names: tuple[str, ...],
    kinds: Collection[LimitKind],
    *,
    features: Mapping[str, bool],
) -> None:
    client = await connect(kubeconfig=kubeconfig, context=context)
    try:
        failed = await _put_back_all(client, names, kinds)
        for part in RELEASE.parts():
            if all(features[one.name] for one in fields(part.flags)):
                failed += await part.put_back(client, names)
    finally:
        await client.close()
    if failed:
        raise ClusterError("; ".join(failed))


async def _put_back_all(
    client: KubeClient, names: tuple[str, ...], kinds: Collection[LimitKind]
) -> list[str]:
    """Restore the former bounds; what could not be."""
    put_back, failed = 0, list[str]()
    for form in (form for form in LIMIT_FORMS if form.kind in kinds):
        holders = limit_holders(client, form, namespaces=names)
        ended, left = await put_back_fields(form.kind, holders, _bound_told)
        put_back += ended
        failed += left
    minutes = RELEASED_SECONDS / 60
    typer.echo(f"{put_back} put back; left alone for {minutes:.0f} minutes")
    return failed


def _bound_told(holder: LimitHolder) -> str:
    owner = holder.owner
    if owner is None or not holder.is_ours:
        return f"{holder.manager or 'another client'} set {holder.limit} meanwhile, which stays"
    former = "unset" if owner.former is None else str(owner.former)
    return f"{holder.form.field} {holder.limit} -> {former}"
