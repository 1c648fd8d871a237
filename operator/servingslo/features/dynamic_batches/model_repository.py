"""Read and set the limits of a model's dynamic batches while its server runs.

Uses the model repository API of the KServe v2 protocol, as Triton serves it with
`--model-control-mode=explicit`: `GET /v2/models/M/config` and `/stats`, and
`POST /v2/repository/models/M/load` with the whole configuration in `parameters.config`. A load
changes memory only. The server keeps the old version until the new one is ready, and the old one
answers its queue: none of 40 requests across a load was refused (tried with 2.51).
The owner of the limits and the former values are stored in the model's own `parameters`. So this
record ends with the pod, like the limits.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from servingslo.adapters.engines.channel import EngineChannel
from servingslo.adapters.kubernetes.api.client import KubeClient
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.pods.records import PodRecord, pod_record
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.api.v1alpha1.capacity import MAX_BATCH
from servingslo.errors import EngineRefusedError, NotFoundError, WriteConflictError
from servingslo.features.dynamic_batches.servers import BatcherLimits, Owner, PodBatcher
from servingslo.parsing import written_json

OWNER_PARAMETER = "servingslo.dev/owner"
FORMER_PARAMETER = "servingslo.dev/former"
# The largest number accepted in a configuration or a statistics page.
_MOST = 1 << 53
# A former batch size is restored up to this. A batch size used in a plan has the bound of the spec:
# a plan then takes a second or two; for 2,000 it takes more than ten, and everything else waits.
_MOST_FORMER_BATCH = 1 << 20
_OWNER = re.compile(
    r"(?P<namespace>[a-z0-9-]{1,63})/(?P<name>[a-z0-9][a-z0-9.-]{0,252})/(?P<uid>[A-Za-z0-9-]{1,64})"
)
# Exceptions from an answer of unexpected form. A server belongs to a tenant, so any form can occur.
_STRANGE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
# Batch sizes read from a statistics page, at most.
_MOST_SIZES = 4096

# The cached pod, by namespace and name; None if it is not known.
PodOf = Callable[[str, str], PodRecord | None]


class ModelRepository:
    """Reads and sets limits on owned pods that are Ready."""

    def __init__(self, channel: EngineChannel, client: KubeClient, pod_of: PodOf) -> None:
        self._channel = channel
        self._client = client
        self._pod_of = pod_of

    async def read(self, ref: ResourceRef, pod: str, port: int, model: str) -> PodBatcher:
        """The current limits of a pod. Raises: ClusterError if they cannot be read."""
        record = self._pod_of(ref.namespace, pod)
        if record is None or record.deleting or not record.ready or record.address is None:
            raise NotFoundError(f"{pod} has no address of its own, or is not ready")
        path = f"/v2/models/{quote(model, safe='')}"
        with _understood(pod):
            config = await self._get(ref, record.address, port, f"{path}/config")
            stats = await self._get(ref, record.address, port, f"{path}/stats")
            return _batcher(config, stats, ref, model)

    async def set(
        self, ref: ResourceRef, pod: str, port: int, model: str, limits: BatcherLimits | None
    ) -> bool:
        """Set limits on a pod, or restore the former ones (None); False: nothing to do.

        The pod is read again from the API server, because another pod may have its address by now.
        Raises: WriteConflictError if it is no longer the same pod, or has another owner's limits;
        ClusterError otherwise.
        """
        with _understood(pod):
            address = await self._address(ref.namespace, pod)
            path = quote(model, safe="")
            config = await self._get(ref, address, port, f"/v2/models/{path}/config")
            standing = _limits(_object(config))
            owner, former = _owner(config, ref), _former(config)
            if owner is Owner.ANOTHER:
                raise WriteConflictError(f"{pod}: another one sets the limits of {model}")
            if limits is None:
                if owner is not Owner.OURS or former is None:
                    return False
                wanted = _without_owner(_with_limits(config, *former))
            else:
                if owner is Owner.OURS and standing == limits:
                    return False
                preferred = tuple(_batching(config).get("preferred_batch_size", ()))
                before = former or (standing, preferred)
                # With a preferred size below the largest, batches would end at that size.
                wanted = _with_limits(config, limits, (limits.max_batch_size,))
                wanted = _with_owner(wanted, ref, before)
            with self._client.permitted(ref.namespace) as seconds:
                await self._channel.post(
                    address,
                    port,
                    f"/v2/repository/models/{path}/load",
                    {"parameters": {"config": json.dumps(wanted)}},
                    namespace=ref.namespace,
                    timeout_seconds=seconds,
                )
            return True

    async def _get(self, ref: ResourceRef, address: str, port: int, path: str) -> Any:
        return await self._channel.get(address, port, path, namespace=ref.namespace)

    async def _address(self, namespace: str, pod: str) -> str:
        """The pod's current address.

        Raises: WriteConflictError if it is another pod, is terminating, or has no address of its
        own; EngineRefusedError if it is not Ready.
        """
        known = self._pod_of(namespace, pod)
        item = await self._client.get(api_path("v1", "pods", namespace=namespace, name=pod))
        now = pod_record(item, None)
        same = known is not None and (now.uid, now.owner_uid) == (known.uid, known.owner_uid)
        if not same or now.deleting or now.finished or now.address is None:
            raise WriteConflictError(f"{pod} is not as it was read any more")
        if not now.ready:
            raise EngineRefusedError(f"{pod} is not ready")
        return now.address


@contextmanager
def _understood(pod: str) -> Iterator[None]:
    """Raises: EngineRefusedError for an answer that does not have the API's form."""
    try:
        yield
    except _STRANGE as error:
        raise EngineRefusedError(f"{pod}: an answer has a form that is not known here") from error


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise EngineRefusedError("the configuration is no object")
    return value


def _number(value: Any, field: str, most: int = _MOST) -> int:
    """A whole number from 0. Raises: EngineRefusedError for anything else."""
    # 64-bit numbers may be strings, as protobuf writes them in JSON.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise EngineRefusedError(f"{field} is no number from 0 to {most}")
    return value


def _batching(config: Mapping[str, Any]) -> Mapping[str, Any]:
    batching = config.get("dynamic_batching")
    if not isinstance(batching, dict):
        raise EngineRefusedError("the model has no dynamic_batching")
    return batching


def _limits(config: Mapping[str, Any]) -> BatcherLimits:
    batching = _batching(config)
    policy = batching.get("default_queue_policy") or {}
    largest = _number(config.get("max_batch_size", 0), "max_batch_size", MAX_BATCH)
    if largest < 1 or not isinstance(policy, dict):
        raise EngineRefusedError("the model serves no batches")
    window = batching.get("max_queue_delay_microseconds", 0)
    return BatcherLimits(
        max_batch_size=largest,
        max_queue_delay_microseconds=_number(window, "max_queue_delay_microseconds"),
        max_queue_size=_number(policy.get("max_queue_size", 0), "max_queue_size"),
    )


def _parameter(config: Mapping[str, Any], name: str) -> str | None:
    parameters = config.get("parameters")
    entry = parameters.get(name) if isinstance(parameters, dict) else None
    text = entry.get("string_value") if isinstance(entry, dict) else None
    return text if isinstance(text, str) else None


def _owner(config: Mapping[str, Any], ref: ResourceRef) -> Owner:
    told = _parameter(config, OWNER_PARAMETER)
    if told is None:
        return Owner.NOBODY
    return Owner.OURS if told == _name(ref) else Owner.ANOTHER


def _name(ref: ResourceRef) -> str:
    return f"{ref.namespace}/{ref.name}/{ref.uid}"


def owner_of(batcher: PodBatcher, namespace: str) -> ResourceRef | None:
    """The ServingSLO that a server reports as owner of its limits, if in this namespace.

    The server belongs to a tenant: its reports about other namespaces are ignored.
    """
    match = _OWNER.fullmatch(batcher.told_owner)
    if match is None or match["namespace"] != namespace:
        return None
    return ResourceRef(namespace=namespace, name=match["name"], uid=match["uid"])


def _former(config: Mapping[str, Any]) -> tuple[BatcherLimits, tuple[int, ...]] | None:
    """The former limits and preferred sizes; None if they cannot be read."""
    try:
        told = written_json(_parameter(config, FORMER_PARAMETER) or "null")
        if not isinstance(told, list) or len(told) < 3:
            return None
        numbers = [_number(one, FORMER_PARAMETER) for one in told]
    except (ValueError, EngineRefusedError):
        return None
    if not 1 <= numbers[0] <= _MOST_FORMER_BATCH:
        return None
    return BatcherLimits(*numbers[:3]), tuple(numbers[3:])


def _with_limits(
    config: Mapping[str, Any], limits: BatcherLimits, preferred: tuple[int, ...]
) -> dict[str, Any]:
    """The configuration with these limits; everything else is unchanged."""
    changed = copy.deepcopy(dict(config))
    batching = changed["dynamic_batching"]
    changed["max_batch_size"] = limits.max_batch_size
    batching["max_queue_delay_microseconds"] = limits.max_queue_delay_microseconds
    batching["preferred_batch_size"] = list(preferred)
    policy = batching.setdefault("default_queue_policy", {})
    policy["max_queue_size"] = limits.max_queue_size
    return changed


def _with_owner(
    config: dict[str, Any], ref: ResourceRef, former: tuple[BatcherLimits, tuple[int, ...]]
) -> dict[str, Any]:
    parameters = config.get("parameters")
    limits, preferred = former
    config["parameters"] = {
        **(parameters if isinstance(parameters, dict) else {}),
        OWNER_PARAMETER: {"string_value": _name(ref)},
        FORMER_PARAMETER: {"string_value": json.dumps([*limits, *preferred])},
    }
    return config


def _without_owner(config: dict[str, Any]) -> dict[str, Any]:
    ours = (OWNER_PARAMETER, FORMER_PARAMETER)
    config["parameters"] = {k: v for k, v in config["parameters"].items() if k not in ours}
    return config


def _batcher(config: Any, stats: Any, ref: ResourceRef, model: str) -> PodBatcher:
    config = _object(config)
    limits, former = _limits(config), _former(config)
    before = limits.max_batch_size if former is None else former[0].max_batch_size
    requests = nanoseconds = failed = 0
    batches: dict[int, tuple[int, int]] = {}
    for one in _versions(stats, model):
        counted = one.get("inference_stats") or {}
        done, lost = counted.get("success") or {}, counted.get("fail") or {}
        requests += _number(done.get("count", 0), "success")
        nanoseconds += _number(done.get("ns", 0), "success")
        failed += _number(lost.get("count", 0), "fail")
        for size, count, took in _sizes(one):
            known = batches.get(size, (0, 0))
            batches[size] = known[0] + count, known[1] + took
    return PodBatcher(
        limits=limits,
        instances=_instances(config),
        owner=_owner(config, ref),
        told_owner=_parameter(config, OWNER_PARAMETER) or "",
        former_max_batch_size=min(before, MAX_BATCH),
        requests=requests,
        request_microseconds=nanoseconds // 1000,
        failed=failed,
        batches={size: (count, took // 1000) for size, (count, took) in batches.items()},
    )


def _versions(stats: Any, model: str) -> Iterator[Mapping[str, Any]]:
    told = stats.get("model_stats") if isinstance(stats, dict) else None
    for one in told if isinstance(told, list) else ():
        if isinstance(one, dict) and one.get("name") == model:
            yield one


def _sizes(version: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Size, executions and their nanoseconds, for each executed batch size."""
    told = version.get("batch_stats")
    for one in (told if isinstance(told, list) else [])[:_MOST_SIZES]:
        size = _number(one.get("batch_size", 0), "batch_size", MAX_BATCH)
        parts = [one.get(f"compute_{part}") or {} for part in ("input", "infer", "output")]
        count = _number(parts[1].get("count", 0), "count")
        if size and count:
            yield size, count, sum(_number(part.get("ns", 0), "ns") for part in parts)


def _instances(config: Mapping[str, Any]) -> int:
    """Batches that run at a time: each group's count, times its cards."""
    groups = config.get("instance_group")
    found = 0
    for group in groups if isinstance(groups, list) else ():
        cards = group.get("gpus") or ()
        found += _number(group.get("count", 1), "instance_group.count") * max(len(cards), 1)
    return max(found, 1)
