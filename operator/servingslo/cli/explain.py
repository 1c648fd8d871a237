"""`servingslo explain`: the last decision about a live resource, every number and reason."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from servingslo.cli.decision_document import decision_of
from servingslo.cli.live import Access, only_one, parsed_name, resources_of
from servingslo.cli.output import OutputFormat, answer_no
from servingslo.explain.text import text

_TOLD = ("replicas", "conditions", "lastDecision", "decisions")


def explain(
    resource: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="The ServingSLO to explain.")
    ],
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig to use instead of kubectl's default.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="How the decision is written.")
    ] = OutputFormat.TEXT,
) -> None:
    """Explain the last decision: why this count, what binds, how sure, what would change it.

    Exit code 1: nothing was decided yet.

    Example: servingslo explain inference/llama-chat
    """
    namespace, name = parsed_name(resource)
    access = Access(kubeconfig=kubeconfig, context=context)
    status = asyncio.run(_status(access, namespace, name))
    if output is OutputFormat.JSON:
        told = {key: status[key] for key in _TOLD if key in status}
        typer.echo(json.dumps({"namespace": namespace, "name": name, **told}, indent=2))
    else:
        typer.echo("\n".join(_lines(status, namespace, name)))
    if not status.get("lastDecision"):
        raise answer_no()


async def _status(access: Access, namespace: str, name: str) -> Mapping[str, Any]:
    async with resources_of(access, (namespace,)) as resources:
        return only_one(await resources.read_all(), namespace, name).status


def _lines(status: Mapping[str, Any], namespace: str, name: str) -> Iterator[str]:
    document = status.get("lastDecision")
    if document:
        yield text(decision_of(document, namespace, name))
        if document.get("truncated"):
            yield "The status had no room for all of it: lists that are missing were left out"
    else:
        yield f"{namespace}/{name}: nothing was decided yet"
    if status.get("conditions"):
        yield "Conditions:"
    for entry in status.get("conditions") or ():
        message = f": {entry['message']}" if entry.get("message") else ""
        yield f"  {entry['type']}={entry['status']} ({entry['reason']}){message}"
    if status.get("decisions"):
        yield "Before:"
    for line in status.get("decisions") or ():
        yield f"  {line}"
