"""`servingslo release`: puts back what the operator wrote for a while, without the operator."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated

import typer

from servingslo.adapters.kubernetes.api.client import KubeClient, connect
from servingslo.adapters.kubernetes.api.marked_objects import RELEASED_SECONDS
from servingslo.adapters.kubernetes.api.owned_fields import Owned, OwnedValues, Value
from servingslo.adapters.kubernetes.gateways.limits import (
    LIMIT_FORMS,
    LimitHolder,
    limit_holders,
)
from servingslo.adapters.kubernetes.gateways.route_weights import KIND, weighted_routes
from servingslo.cli.cluster.put_back import RELEASE, asks_features, put_back_each
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
    degradation: Annotated[
        bool, typer.Option(help="Search HTTPRoutes for weights of a fallback.")
    ] = True,
    features: Mapping[str, bool] = MappingProxyType({}),
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Restore the value from before each bound that the operator wrote into a gateway's object.

    Weights of routes that it moved to a fallback are restored too.

    What features have on trial is taken back as well. A running operator leaves these objects alone
    for the next ten minutes.

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
            routes=degradation,
            features=features,
        )
    )


async def _release(
    kubeconfig: str | None,
    context: str | None,
    names: tuple[str, ...],
    kinds: Collection[LimitKind],
    *,
    routes: bool,
    features: Mapping[str, bool],
) -> None:
    client = await connect(kubeconfig=kubeconfig, context=context)
    try:
        failed = await _put_back_all(client, names, kinds)
        for part in RELEASE.parts():
            if all(features[one.name] for one in fields(part.flags)):
                failed += await part.put_back(client, names)
        if routes:
            failed += await _put_back_weights(client, names)
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
        ended, left = await _put_back_each(form.kind, holders, _bound_told)
        put_back += ended
        failed += left
    minutes = RELEASED_SECONDS / 60
    typer.echo(f"{put_back} put back; left alone for {minutes:.0f} minutes")
    return failed


async def _put_back_weights(client: KubeClient, names: tuple[str, ...]) -> list[str]:
    """Restore the owners' weights in every route; what could not be."""
    routes = weighted_routes(client, namespaces=names)
    _, failed = await _put_back_each(KIND, routes, lambda _: "the former weights are put back")
    return failed


async def _put_back_each(
    kind: str, field: OwnedValues[Value, Owned], told: Callable[[Value], str]
) -> tuple[int, list[str]]:
    """Put the field back in each object of a kind; how many, and what could not be."""

    async def end(one: Value) -> str:
        await field.put_back(one, released=True)
        return told(one)

    async def again(one: Value) -> Value:
        return await field.read(one.namespace, one.name)

    return await put_back_each(kind, field.owned(), end, again)


def _bound_told(holder: LimitHolder) -> str:
    owner = holder.owner
    if owner is None or not holder.is_ours:
        return f"{holder.manager or 'another client'} set {holder.limit} meanwhile, which stays"
    former = "unset" if owner.former is None else str(owner.former)
    return f"{holder.form.field} {holder.limit} -> {former}"
