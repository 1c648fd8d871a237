"""What a workload may use (replicas, utilization, KV cache), and what its engine is known to do."""

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from servingslo.api.constraints import (
    MAX_REPLICAS,
    Between,
    Count,
    DurationBetween,
    Number,
    QuantityFrom,
    cel_rule,
    not_allowed,
)
from servingslo.api.spec_base import (
    OF_REPLICAS,
    ApiModel,
    parts_within,
    with_features,
    with_rules,
)
from servingslo.units import parse_quantity_bytes

# Sanity bounds, far above any fleet or model in use, so that no tenant can make a plan expensive.
MAX_LAYERS = 1000
MAX_HEADS = 1024
MAX_HEAD_DIM = 4096
MAX_ELEMENT_BYTES = 8
MAX_GPUS = 1024
MAX_BATCH, MAX_QUEUE, MAX_INSTANCES = 512, 100_000, 64
# A step of the fastest engine takes longer than the first, one of the slowest (a CPU) less than the
# second: a time in milliseconds is refused. A token's share of a step is below a tenth of that.
SHORTEST_STEP_SECONDS, LONGEST_STEP_SECONDS = 0.0001, 1
LONGEST_SHARE_SECONDS = 0.1
LONGEST_CONTEXT_SHARE_SECONDS = 0.001


class _Bounds(ApiModel):
    """What every resource may state of the replica count."""

    min: Annotated[Count, Between(0, MAX_REPLICAS)] = Field(
        1,
        description="Fewest replicas, 1 (default) to 10000, or 0: with idleAfter the last one goes "
        "when no requests arrive, if the administrator configured a gateway that counts requests.",
    )
    idle_after: Annotated[str, DurationBetween("10s", "168h")] | None = Field(
        None,
        description="How long no request must have arrived before the last replica goes, 10s to "
        "168h. Required when min is 0; else it has no effect.",
    )
    max: Annotated[Count, Between(1, MAX_REPLICAS)] | None = Field(
        None, description="Most replicas, from min to 10000. Required when mode is Auto."
    )
    tolerated_failures: Annotated[Count, Between(0, MAX_REPLICAS)] = Field(
        0,
        description="Replicas that may fail while the objectives still hold; that many more are "
        "kept. Default 0, less than max.",
    )


if TYPE_CHECKING:
    _WithFeatures = _Bounds
else:
    _WithFeatures = with_features(_Bounds, OF_REPLICAS)


class Replicas(_WithFeatures):
    """Bounds on the replica count."""

    model_config = with_rules(
        cel_rule(
            "!has(self.max) || self.min <= self.max",
            allowed="at most max, %s",
            got="%s",
            values=("self.max", "self.min"),
            field_path=".min",
        ),
        cel_rule(
            "!has(self.max) || self.toleratedFailures < self.max",
            allowed="fewer than max, %s",
            got="%s",
            values=("self.max", "self.toleratedFailures"),
            field_path=".toleratedFailures",
        ),
        cel_rule(
            "self.min != 0 || has(self.idleAfter)",
            allowed="a duration, required when min is 0",
            got="nothing",
            field_path=".idleAfter",
            reason="FieldValueRequired",
        ),
        *(rule for part in parts_within(OF_REPLICAS) for rule in part.rules),
    )

    @model_validator(mode="after")
    def _within_max(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise not_allowed(f"at most max, {self.max}", path=("min",), value=self.min)
        if self.max is not None and self.tolerated_failures >= self.max:
            raise not_allowed(
                f"fewer than max, {self.max}",
                path=("toleratedFailures",),
                value=self.tolerated_failures,
            )
        return self

    @model_validator(mode="after")
    def _zero_has_idle_after(self) -> Self:
        if self.min == 0 and self.idle_after is None:
            allowed = "a duration, required when min is 0"
            raise not_allowed(allowed, path=("idleAfter",), value=None)
        return self

    @model_validator(mode="after")
    def _features_agree(self) -> Self:
        for part in parts_within(OF_REPLICAS):
            part.check(self)
        return self


class Utilization(ApiModel):
    """Bound on utilization."""

    target: Annotated[Number, Between(0.1, 0.95)] | None = Field(
        None,
        description="Upper bound on arrival rate divided by saturation rate, 0.1 to 0.95. "
        "Objectives usually bind earlier; this is the ceiling. When absent: 0.85, or 0.90 while "
        "an enforced bound on requests in flight is verified.",
    )


class KVCacheModel(ApiModel):
    """Geometry of the KV cache, for engines that report no capacity."""

    model_config = with_rules(
        cel_rule(
            "[self.weights, self.workspace, self.gpuMemory].exists(q, !isQuantity(q)) ||"
            " quantity(self.weights).asApproximateFloat()"
            " + quantity(self.workspace).asApproximateFloat()"
            " < quantity(self.gpuMemory).asApproximateFloat() * double(self.gpus)",
            allowed="weights + workspace less than gpuMemory x gpus, %s x %s",
            got="%s + %s",
            values=("self.gpuMemory", "self.gpus", "self.weights", "self.workspace"),
            field_path=".weights",
        )
    )

    layers: Annotated[Count, Between(1, MAX_LAYERS)] = Field(
        description="Transformer layers, 1 to 1000 (num_hidden_layers of the model's config)."
    )
    kv_heads: Annotated[Count, Between(1, MAX_HEADS)] = Field(
        description="Key-value heads, 1 to 1024 (num_key_value_heads)."
    )
    head_dim: Annotated[Count, Between(1, MAX_HEAD_DIM)] = Field(
        description="Width of one head, 1 to 4096 (head_dim, or hidden_size / num_attention_heads)."
    )
    bytes_per_element: Annotated[Count, Between(1, MAX_ELEMENT_BYTES)] = Field(
        2, description="Bytes of one cached number, 1 to 8: 2 for bf16 (default), 1 for fp8."
    )
    weights: Annotated[str, QuantityFrom(1)] = Field(
        description="Memory of the weights over all GPUs of one replica, such as 16Gi."
    )
    workspace: Annotated[str, QuantityFrom(0)] = Field(
        description="Memory for activations, graphs and everything else over all GPUs of one "
        "replica, such as 4Gi."
    )
    gpu_memory: Annotated[str, QuantityFrom(1)] = Field(
        description="Memory of one GPU that the engine may use, such as 72Gi."
    )
    gpus: Annotated[Count, Between(1, MAX_GPUS)] = Field(
        1, description="GPUs of one replica, 1 (default) to 1024."
    )

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        used = parse_quantity_bytes(self.weights) + parse_quantity_bytes(self.workspace)
        if used >= parse_quantity_bytes(self.gpu_memory) * self.gpus:
            raise not_allowed(
                f"weights + workspace less than gpuMemory x gpus, {self.gpu_memory} x {self.gpus}",
                path=("weights",),
                value=f"{self.weights} + {self.workspace}",
            )
        return self


class KVCache(ApiModel):
    """Bound on KV cache use."""

    target: Annotated[Number, Between(0.1, 1)] = Field(
        0.9,
        description="Share of the engine's KV blocks that may be in use, 0.1 to 1, default 0.9.",
    )
    model: KVCacheModel | None = Field(
        None,
        description="Geometry of the cache; needed only where the engine does not report its "
        "number of blocks.",
    )


class DynamicBatching(ApiModel):
    """How batches of whole requests form, as the model's configuration on the server has it."""

    max_batch_size: Annotated[Count, Between(1, MAX_BATCH)] = Field(
        description="Largest batch in rows, 1 to 512 (max_batch_size)."
    )
    max_queue_delay: Annotated[str, DurationBetween("0s", "10m")] = Field(
        "0s",
        description="How long the first request of a batch waits for others, 0s (default) to 10m "
        "(max_queue_delay_microseconds).",
    )
    max_queue_size: Annotated[Count, Between(0, MAX_QUEUE)] = Field(
        0,
        description="Requests that may wait, 1 to 100000; 0 (default) for any number "
        "(max_queue_size of the default queue policy).",
    )
    instances: Annotated[Count, Between(1, MAX_INSTANCES)] = Field(
        1,
        description="Batches that run at a time in one pod, 1 (default) to 64 (count of the "
        "instance group, times the GPUs that it is on).",
    )


class ServiceLaw(ApiModel):
    """Time of an engine's step, with the names of `servingslo fit` and of status.model."""

    step_fixed_seconds: Annotated[Number, Between(SHORTEST_STEP_SECONDS, LONGEST_STEP_SECONDS)] = (
        Field(description="Fixed time of a step, 0.0001 to 1 seconds, such as 0.0065.")
    )
    step_per_sequence_seconds: Annotated[Number, Between(0, LONGEST_SHARE_SECONDS)] = Field(
        description="What each running sequence adds, 0 to 0.1 seconds, such as 0.00004."
    )
    prefill_per_token_seconds: Annotated[Number, Between(0, LONGEST_SHARE_SECONDS)] = Field(
        description="What each uncached prompt token adds, 0 to 0.1 seconds, such as 0.00003."
    )
    context_per_token_seconds: Annotated[Number, Between(0, LONGEST_CONTEXT_SHARE_SECONDS)] = Field(
        0,
        description="What each token of context of the running sequences adds, 0 (default) to "
        "0.001 seconds; a fit has it in stepPerSequenceSeconds.",
    )
