"""`servingslo explain`: the last decision about a live resource, every number and reason."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.cli import lab
from servingslo.cli.decision_document import fleet_of, last_document
from servingslo.cli.live import Access, only_one, parsed_name, resources_of
from servingslo.cli.options import Context, Kubeconfig
from servingslo.cli.output import OutputFormat, answer_no, as_json
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.controller.reporting.stored_state import learned_of
from servingslo.errors import InvalidInputError
from servingslo.explain.pools import fleet_text

_TOLD = ("reason", "summary", "replicas", "conditions", "lastDecision", "decisions")


@asks_prometheus()
def explain(
    resource: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="The ServingSLO to explain.")
    ],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Price other objectives; needs --prometheus-url.")
    ] = False,
    prometheus_url: Annotated[
        str | None,
        typer.Option(
            envvar="SERVINGSLO_PROMETHEUS_URL", help="Address of Prometheus's HTTP API, to sweep."
        ),
    ] = None,
    asking: PrometheusFlags = PrometheusFlags(),
    gpu_hourly: Annotated[
        float | None,
        typer.Option(help="Price of one GPU for an hour, to sweep; that of spec.cost by default."),
    ] = None,
    gpus_per_replica: Annotated[
        int | None,
        typer.Option(help="GPUs of one replica, to sweep; those of spec.cost by default."),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Output format.")
    ] = OutputFormat.TEXT,
) -> None:
    """Explain the last decision: why this count, what binds, how sure, what would change it.

    Exit code 1: nothing was decided yet.

    With --sweep it also shows the cost of other thresholds, percentiles, tolerated failures,
    targets and cold starts, for the demand in the status. Pools are swept
    one by one, each with its part of demand and thresholds.

    Example: servingslo explain inference/llama-chat
    """
    namespace, name = parsed_name(resource)
    if sweep and not prometheus_url:
        raise InvalidInputError("--prometheus-url", prometheus_url, "an address, with --sweep")
    config = asking.config(prometheus_url or "") if sweep else None
    swept = None
    if config is not None:
        loaded = lab.loaded(lab.OPTIONS, "explain-sweep", "explain --sweep")
        swept = loaded(config, hourly=gpu_hourly, count=gpus_per_replica)
    access = Access(kubeconfig=kubeconfig, context=context)
    record = asyncio.run(_record(access, namespace, name))
    sweeps = {} if swept is None else swept(access, record)
    status = record.status
    if output is OutputFormat.JSON:
        told = {key: status[key] for key in _TOLD if key in status}
        if (document := last_document(status)) is not None:
            told["lastDecision"] = document
        if (known := learned_of(status)) is not None:
            told["learned"] = known
        told |= {"sweep": json.loads(as_json(sweeps.get("", sweeps)))} if sweeps else {}
        typer.echo(json.dumps({"namespace": namespace, "name": name, **told}, indent=2))
    else:
        typer.echo("\n".join(_lines(status, namespace, name)))
        for pool, one in sweeps.items():
            typer.echo("\n".join(one.lines(pool)))
    if not status.get("lastDecision"):
        raise answer_no()


async def _record(access: Access, namespace: str, name: str) -> ResourceRecord:
    async with resources_of(access, (namespace,)) as resources:
        return only_one(await resources.read_all(), namespace, name)


def _older(document: Mapping[str, Any], conditions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """That the decision is from before what the conditions say, where it is."""
    decided = str(document.get("time") or "")
    newer = [entry for entry in conditions if str(entry.get("lastTransitionTime") or "") > decided]
    if decided and newer:
        last = max(newer, key=lambda entry: str(entry["lastTransitionTime"]))
        yield (
            f"This decision of {decided} is older than the conditions: {last['type']} is "
            f"{last['status']} ({last['reason']}) since {last['lastTransitionTime']}"
        )


def _lines(status: Mapping[str, Any], namespace: str, name: str) -> Iterator[str]:
    document = last_document(status)
    if document is not None:
        try:
            yield fleet_text(fleet_of(document, namespace, name))
        except InvalidInputError as error:
            yield f"{namespace}/{name}: the last decision is of another version: {error}"
        if any(one.get("truncated") for one in (document, *document.get("pools", {}).values())):
            yield "The status had no room for the whole decision: some lists are left out"
        yield from _older(document, status.get("conditions") or ())
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
