"""A live cluster as the command line reads it: nothing is ever written to it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.client import connect
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.api.paths import SERVER_VERSION
from servingslo.adapters.kubernetes.pods.config_maps import ConfigMaps
from servingslo.adapters.kubernetes.pods.inventory import Inventory
from servingslo.adapters.kubernetes.resources import KubernetesResources, ResourceRecord
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.cli.options import path_text
from servingslo.controller.join import join, subject_of
from servingslo.controller.registry import Resource
from servingslo.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from servingslo.policy.inputs import Observation, SignalProblem
from servingslo.policy.ports import ClusterMetrics, HistorySource

_MOST_NAMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the cluster is reached; None means as kubectl does."""

    kubeconfig: Path | None = None
    context: str | None = None


@asynccontextmanager
async def resources_of(
    access: Access, namespaces: Sequence[str] = ()
) -> AsyncIterator[KubernetesResources]:
    """The ServingSLOs of a cluster. Raises: ClusterError."""
    client = await connect(kubeconfig=path_text(access.kubeconfig), context=access.context)
    try:
        yield KubernetesResources(client, namespaces=namespaces)
    finally:
        await client.close()


@asynccontextmanager
async def workloads_of(
    access: Access, namespaces: Sequence[str] = ()
) -> AsyncIterator[KubernetesWorkloads]:
    """The workloads of a cluster, watched while inside. Raises: ClusterError."""
    client = await connect(kubeconfig=path_text(access.kubeconfig), context=access.context)
    inventory = Inventory(client, namespaces=namespaces)
    try:
        # What watches goes on where nobody answers, as an operator has to: two minutes of silence.
        with suppress(PermissionDeniedError, NotFoundError):
            await client.get(SERVER_VERSION)
        await inventory.start()
        yield KubernetesWorkloads(client, Discovery(client), inventory, ConfigMaps(client))
    finally:
        await inventory.stop()
        await client.close()


async def observations_of(
    resource: Resource,
    workloads: KubernetesWorkloads,
    metrics: ClusterMetrics,
    conflict: SignalProblem | None = None,
    past: HistorySource | None = None,
) -> tuple[Observation, ...]:
    """What the operator would see of one resource now, of each pool or of its only target.

    All count as of one time; the first has the past rates of the whole. Empty for an invalid spec.
    past: where they are from; None where they are not asked for. Raises: ClusterError.
    """
    ref, looks = resource.record.ref, []
    for pool, targets in resource.pools.items():
        view = await workloads.read(
            ref.namespace,
            targets.target,
            targets.batching.container,
            metrics.recognize(ref.namespace, targets.runtime),
        )
        observation = join(
            subject_of(resource.record, targets, pool),
            view,
            metrics,
            now_seconds=SystemClock.now_seconds(),
            problems=() if conflict is None else (conflict,),
        )
        looks.append((view, observation))
    if not looks:
        return ()
    history = None
    if past is not None and resource.targets is not None:
        pods = [pod.name for view, _ in looks for pod in view.pods]
        history = past.take(ref.uid, ref.namespace, resource.targets, pods)
    at = looks[0][1].time_seconds
    first, *others = (replace(observation, time_seconds=at) for _, observation in looks)
    return replace(first, history=history), *others


def parsed_name(text: str) -> tuple[str, str]:
    """Namespace and name in 'NAMESPACE/NAME'. Raises: InvalidInputError for another form."""
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise InvalidInputError("NAMESPACE/NAME", text, "a namespace and a name: inference/chat")
    return namespace, name


def only_one(records: Sequence[ResourceRecord], namespace: str, name: str) -> ResourceRecord:
    """The resource of that name. Raises: InvalidInputError naming those that are there."""
    for record in records:
        if record.ref.name == name:
            return record
    names = ", ".join(sorted(record.ref.name for record in records)[:_MOST_NAMES]) or "none"
    allowed = f"a ServingSLO of namespace {namespace}; there: {names}"
    raise InvalidInputError("NAME", name, allowed)
