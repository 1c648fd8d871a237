"""KV caches that pass from one simulated engine to another, as by vLLM's NIXL connector.

A request with `do_remote_decode` leaves its KV cache in the engine and gets the address of it. A
request with that address waits until the cache has been read, and then counts it as computed. Both
need the connector: `--kv-transfer-config` with `NixlConnector` in the container's arguments.

Source: vLLM 0.32 `distributed/kv_transfer/kv_connector/v1/nixl`, `config/kv_transfer.py`.
Approximation: a cache that waits to be read holds no blocks of its engine.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.pools.fleet import Transfer

TRANSFER_ANNOTATION = "rig.servingslo.dev/transfer"
"""Annotation of pods: `fixed_seconds=0.02,tokens_per_second=50000`, each of them optional."""
CONNECTOR_FLAG = "--kv-transfer-config"
_CONNECTOR = "NixlConnector"
# Source: VLLM_NIXL_ABORT_REQUEST_TIMEOUT of vllm/envs.py.
HELD_SECONDS = 480.0
# Source: VLLM_NIXL_SIDE_CHANNEL_PORT of vllm/envs.py.
SIDE_CHANNEL_PORT = 5600
_BLOCK_TOKENS = 16
# Llama 3.1 8B with 16 bits: 32 layers, 8 heads of 128 for keys and for values.
BYTES_PER_TOKEN = 128 * 1024
# Source: vLLM 0.32 NixlPromMetrics.
TIME_EDGES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
BYTES_EDGES = tuple(float(2 ** (10 + i)) for i in range(1, 25, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """How an engine reads a KV cache, and whether it computes a cache that it cannot read."""

    transfer: Transfer = field(default_factory=Transfer)
    recompute: bool = False


def connector_of(text: str | None, annotations: Mapping[str, str]) -> Connector | None:
    """The connector by its configuration (JSON) and a pod's annotations; None without NIXL.

    Raises: InvalidInputError for an invalid annotation or configuration.
    """
    if text is None:
        return None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(CONNECTOR_FLAG, text, "JSON") from error
    if not isinstance(document, dict) or document.get("kv_connector") != _CONNECTOR:
        return None
    return Connector(
        transfer=_transfer(annotations.get(TRANSFER_ANNOTATION, "")),
        recompute=document.get("kv_load_failure_policy") == "recompute",
    )


def _transfer(text: str) -> Transfer:
    try:
        pairs = (word.split("=") for word in text.split(",") if word)
        return Transfer(**{name: float(value) for name, value in pairs})
    except (ValueError, TypeError) as error:
        allowed = "name=number, of fixed_seconds and tokens_per_second"
        raise InvalidInputError(TRANSFER_ANNOTATION, text, allowed) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAddress:
    """Where a KV cache can be read: an engine, and its request whose cache it is."""

    engine_id: str
    request_id: str


def keeps_cache(parameters: Mapping[str, Any]) -> bool:
    """Whether the engine is asked to keep the request's KV cache for another engine."""
    return bool(parameters.get("do_remote_decode"))


def cache_address(parameters: Mapping[str, Any]) -> CacheAddress | None:
    """The KV cache that the engine is to read; None without one."""
    if not parameters.get("do_remote_prefill"):
        return None
    return CacheAddress(
        engine_id=str(parameters.get("remote_engine_id")),
        request_id=str(parameters.get("remote_request_id")),
    )


def parameters_of(address: CacheAddress, tokens: int, host: str) -> dict[str, Any]:
    """The `kv_transfer_params` of an answer whose KV cache is kept."""
    first = int(address.request_id)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": address.engine_id,
        "remote_request_id": address.request_id,
        "remote_block_ids": list(range(first, first + math.ceil(tokens / _BLOCK_TOKENS))),
        "remote_host": host,
        "remote_port": SIDE_CHANNEL_PORT,
        "tp_size": 1,
    }


@dataclass(slots=True)
class Observations:
    """A histogram: edges, a count for each bucket and one beyond the last, the sum of values."""

    edges: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        if not self.counts:
            self.counts = [0] * (len(self.edges) + 1)
        self.counts[sum(edge < value for edge in self.edges)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Cumulative counts; the last one is of all values."""
        counts = self.counts or [0] * (len(self.edges) + 1)
        return [sum(counts[: i + 1]) for i in range(len(counts))]


@dataclass(slots=True)
class TransferCounts:
    """What an engine has read through its connector.

    hit_tokens: of caches that were read, once the request is scheduled. prompt_tokens: the same,
    once it has a first token. waiting: requests whose cache is on its way. expired: caches that
    nobody read in time.
    """

    hit_tokens: int = 0
    prompt_tokens: int = 0
    waiting: int = 0
    failed: int = 0
    expired: int = 0
    seconds: Observations = field(default_factory=lambda: Observations(TIME_EDGES))
    bytes: Observations = field(default_factory=lambda: Observations(BYTES_EDGES))

    def read(self, tokens: int, seconds: float) -> None:
        """Count a cache that was read."""
        self.seconds.observe(seconds)
        self.bytes.observe(float(tokens * BYTES_PER_TOKEN))
