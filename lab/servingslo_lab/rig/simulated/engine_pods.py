"""Find the cluster's pods that are simulated engines, with a watch on the real API server."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.aio import client, watch
from kubernetes.aio.config import load_kube_config

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits
from servingslo.runtimes.engines.vllm import VLLM
from servingslo.runtimes.launch.arguments import parse_batch_arguments
from servingslo.runtimes.launch.command_line import expanded
from servingslo_lab.rig.simulated.kv_transfers import CONNECTOR_FLAG, Connector, connector_of
from servingslo_lab.rig.simulated.uneven_law import UnevenLaw, uneven_law
from servingslo_lab.sim.fleets.engine_kinds import EngineKind, engine_kind

ENGINE_LABEL = "rig.servingslo.dev/engine"
"""Label of pods that the rig runs a simulated engine for; the value is the runtime, `vllm`."""
KIND_ANNOTATION = "rig.servingslo.dev/fleet"
"""Annotation that names the service law: `h100-8b` or `l4-small`."""
DRAIN_ANNOTATION = "rig.servingslo.dev/drain"
"""Annotation: `true` finishes requests in flight when the pod is deleted. vLLM loses them unless
`--shutdown-timeout` is given, which has the same effect here."""
DEFAULT_KIND = "l4-small"
_DEFAULT_MODEL_LEN = 131072
_DEFAULT_PORT = 8000  # vLLM's own
_WATCH_SECONDS = 240
_RETRY_SECONDS = 0.5
_REQUEST_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePod:
    """A pod with a simulated engine. incarnation changes when the container restarts.

    address, port: where it listens, if the address is a loopback address of this machine.
    uneven: its deviation from the law of its kind; None if there is none. connector: moves KV
    caches between engines; None if it has none.
    """

    namespace: str
    name: str
    incarnation: str
    labels: Mapping[str, str]
    container: str
    node: str
    model_name: str
    kind: EngineKind
    limits: EngineLimits
    max_queued: int | None
    max_model_len: int
    drain: bool
    ready: bool
    address: str = ""
    port: int = _DEFAULT_PORT
    uneven: UnevenLaw | None = None
    connector: Connector | None = None

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"


def flag_value(argv: Sequence[str], flag: str) -> str | None:
    """The value of `--flag=value` or `--flag value` (the last one wins), None if absent."""
    found = None
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if equals:
            found = value
        elif i + 1 < len(argv):
            found = argv[i + 1]
    return found


def _integer_flag(argv: Sequence[str], flag: str) -> int | None:
    text = flag_value(argv, flag)
    return int(text) if text is not None and text.isdigit() else None


def engine_pod(pod: Any) -> EnginePod | None:
    """The engine of a pod (a V1Pod), None if it has none or it cannot start.

    Limits that are not in the arguments are those of the engine's kind.
    """
    meta, spec, status = pod.metadata, pod.spec, pod.status
    labels, annotations = meta.labels or {}, meta.annotations or {}
    if labels.get(ENGINE_LABEL) != VLLM.name or not spec.containers:
        return None
    container = spec.containers[0]
    variables = {one.name: one.value for one in container.env or () if one.value is not None}
    command, args = (expanded(words, variables) for words in (container.command, container.args))
    argv = [*command, *args]
    try:
        kind = engine_kind(annotations.get(KIND_ANNOTATION, DEFAULT_KIND))
        uneven = uneven_law(annotations)
        connector = connector_of(flag_value(argv, CONNECTOR_FLAG), annotations)
    except InvalidInputError:
        return None
    found = parse_batch_arguments(command, args, VLLM)
    # Source: vllm/config/cache.py of 0.32.0: overrides the profiled number of blocks.
    blocks = _integer_flag(argv, "--num-gpu-blocks-override")
    limits = EngineLimits(
        max_num_seqs=found.max_num_seqs or kind.limits.max_num_seqs,
        max_num_batched_tokens=found.max_num_batched_tokens or kind.limits.max_num_batched_tokens,
        kv_capacity_tokens=kind.limits.kv_capacity_tokens
        if blocks is None
        else blocks * kind.limits.kv_block_tokens,
    )
    if limits.max_num_seqs > limits.max_num_batched_tokens:
        return None  # vLLM refuses to start
    restarts = sum(one.restart_count or 0 for one in (status.container_statuses or []))
    conditions = {one.type: one.status for one in (status.conditions or [])}
    return EnginePod(
        namespace=meta.namespace,
        name=meta.name,
        incarnation=f"{meta.uid}/{restarts}",
        labels=labels,
        container=container.name,
        node=spec.node_name or "",
        model_name=flag_value(argv, "--served-model-name")
        or flag_value(argv, "--model")
        or "model",
        kind=kind,
        limits=limits,
        max_queued=_integer_flag(argv, "--max-num-queued-reqs"),
        max_model_len=_integer_flag(argv, "--max-model-len") or _DEFAULT_MODEL_LEN,
        drain=annotations.get(DRAIN_ANNOTATION) == "true"
        or bool(_integer_flag(argv, "--shutdown-timeout")),
        ready=conditions.get("Ready") == "True" and meta.deletion_timestamp is None,
        address=status.pod_ip or "",
        port=_integer_flag(argv, "--port") or _DEFAULT_PORT,
        uneven=uneven,
        connector=connector,
    )


class PodWatch:
    """Keeps the set of engine pods up to date: list, watch, and list again after every gap.

    on_change: called in the event loop with all pods that have the engine label, whenever one of
    them changed.
    """

    def __init__(self, kubeconfig: str, on_change: Callable[[Sequence[EnginePod]], None]) -> None:
        self._kubeconfig = kubeconfig
        self._on_change = on_change
        self._pods: dict[str, EnginePod] = {}
        self.synced = False

    async def run(self) -> None:
        """Watch until cancelled; an outage of the API server does not change the pods."""
        configuration = client.Configuration()
        await load_kube_config(self._kubeconfig, client_configuration=configuration)
        configuration.proxy = None  # proxy settings of the environment are not for loopback
        async with client.ApiClient(configuration) as api:
            core = client.CoreV1Api(api)
            while True:
                with contextlib.suppress(
                    client.ApiException, OSError, asyncio.TimeoutError, ValueError,
                    client.rest.aiohttp.ClientError,
                ):  # fmt: skip
                    await self._list_and_watch(core)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _list_and_watch(self, core: Any) -> None:
        listed = await core.list_pod_for_all_namespaces(
            label_selector=ENGINE_LABEL, _request_timeout=_REQUEST_SECONDS
        )
        pods = (engine_pod(pod) for pod in listed.items)
        self._pods = {pod.key: pod for pod in pods if pod is not None}
        self.synced = True
        self._on_change(tuple(self._pods.values()))
        async with watch.Watch() as stream:
            async for event in stream.stream(
                core.list_pod_for_all_namespaces,
                label_selector=ENGINE_LABEL,
                resource_version=listed.metadata.resource_version,
                timeout_seconds=_WATCH_SECONDS,
            ):
                self._apply(event["type"], event["object"])

    def _apply(self, kind: str, pod: Any) -> None:
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        read = None if kind == "DELETED" else engine_pod(pod)
        if read is None:
            self._pods.pop(key, None)
        else:
            self._pods[key] = read
        self._on_change(tuple(self._pods.values()))
