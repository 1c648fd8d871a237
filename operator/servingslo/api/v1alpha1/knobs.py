"""The engine's limits, and what may be done with them and with admission."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from servingslo.api.constraints import (
    Between,
    Count,
    DurationBetween,
    cel_rule,
    not_allowed,
)
from servingslo.api.patterns import DNS_LABEL, DNS_NAME, PRODUCT
from servingslo.api.spec_base import ApiModel, with_rules
from servingslo.api.v1alpha1.capacity import DynamicBatching
from servingslo.policy.inputs import AdmissionMode, BatchingMode, LimitKind

# Far above --max-num-seqs of any engine in use (vLLM's default is 256 or 1024 by card).
MAX_SEQUENCES = 65_536
# Far above any context length in use.
MAX_BATCHED_TOKENS = 524_288
# Far above any gateway's fleet.
MAX_PROXIES = 1_000


_BOTH_NAMES = "card and model together"


class Engine(ApiModel):
    """What is known of the engine that its command line does not show."""

    model_config = with_rules(
        cel_rule(
            "has(self.card) == has(self.model)",
            allowed=_BOTH_NAMES,
            got="one of them",
            field_path=".card",
        ),
    )

    card: Annotated[str, PRODUCT] | None = Field(
        None,
        description="The GPU, such as h100 or the node's label nvidia.com/gpu.product. With model "
        "it gives a law that is assumed in the first windows, unless serviceLaw states one.",
    )
    model: Annotated[str, PRODUCT] | None = Field(
        None,
        description="The model on it, such as llama-3.1-8b, or any name with its size: my-13b, "
        "my-30b-a3b. Its GPUs are gpusPerReplica, 1 by default.",
    )
    max_sequences: Annotated[Count, Between(1, MAX_SEQUENCES)] | None = Field(
        None,
        description="Most sequences that run at once on one engine, 1 to 65536; by default as "
        "exported, on the command line (--max-num-seqs), measured or vLLM's default. If it is "
        "stated, batch limits of the command line are only recommended.",
    )
    max_batched_tokens: Annotated[Count, Between(1, MAX_BATCHED_TOKENS)] | None = Field(
        None,
        description="Most tokens of one step of an engine, 1 to 524288; by default as for "
        "maxSequences (--max-num-batched-tokens).",
    )
    dynamic_batching: DynamicBatching | None = Field(
        None,
        description="How the server forms batches of whole requests, for runtime triton; read "
        "from the servers if the administrator allows it. Without either, measured saturation "
        "decides.",
    )

    @model_validator(mode="after")
    def _card_has_model(self) -> Self:
        if (self.card is None) != (self.model is None):
            raise not_allowed(_BOTH_NAMES, path=("card",), value=self.card or self.model)
        return self


class Batching(ApiModel):
    """What may be done with the engine's batch limits."""

    model_config = with_rules(
        cel_rule(
            "!has(self.maxSequences) || self.minSequences <= self.maxSequences",
            allowed="at most maxSequences, %s",
            got="%s",
            values=("self.maxSequences", "self.minSequences"),
            field_path=".minSequences",
        )
    )

    mode: BatchingMode = Field(
        BatchingMode.RECOMMEND,
        description="Recommend (default: report the best limits), Auto (set them, where the "
        "administrator allows it: in the container's command line or variables, which restarts "
        "pods, or on Triton's running servers, which restarts none; one pod first) or Off.",
    )
    container: Annotated[str, DNS_LABEL] | None = Field(
        None,
        description="Name of the engine's container; by default the only one that asks for a card "
        "or names the runtime. If several do, nothing is read or changed until this is set.",
    )
    min_sequences: Annotated[Count, Between(1, MAX_SEQUENCES)] = Field(
        1, description="Fewest running sequences to consider, 1 (default) to 65536."
    )
    max_sequences: Annotated[Count, Between(1, MAX_SEQUENCES)] | None = Field(
        None,
        description="Most running sequences to consider, from minSequences to 65536; by "
        "default what memory holds.",
    )
    min_interval: Annotated[str, DurationBetween("10s", "168h")] = Field(
        "10m", description="Least time between two changes, 10s to 168h, default 10m."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_sequences is not None and self.min_sequences > self.max_sequences:
            raise not_allowed(
                f"at most maxSequences, {self.max_sequences}",
                path=("minSequences",),
                value=self.min_sequences,
            )
        return self


class AdmissionVia(ApiModel):
    """What holds the bound: an object of the gateway, or the engines themselves."""

    model_config = with_rules(
        cel_rule(
            "has(self.name) == (self.kind != 'EngineArguments')",
            allowed="a name, required for an object of a gateway and none for EngineArguments",
            got="kind %s",
            values=("self.kind",),
            field_path=".name",
        )
    )

    kind: LimitKind = Field(
        description="Kind of the object. BackendTrafficPolicy: of Envoy Gateway; the bound is "
        "spec.circuitBreaker.maxParallelRequests. DestinationRule: of Istio; the bound is "
        "spec.trafficPolicy.connectionPool.http.http2MaxRequests. EngineArguments: each engine's "
        "own bound (--max-num-queued-reqs of vLLM), changed together with batch limits, one pod "
        "first; batching.mode must be Auto."
    )
    name: Annotated[str, DNS_NAME] | None = Field(
        None,
        description="Its name, in the namespace of this resource. It must carry the label "
        'servingslo.dev/managed: "true" and be for one HTTPRoute, or one Service as its host, to '
        "this workload alone. None for EngineArguments.",
    )

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.name is None) != (self.kind is LimitKind.ENGINE_ARGUMENTS):
            raise not_allowed(
                "a name, required for an object of a gateway and none for EngineArguments",
                path=("name",),
                value=self.name,
            )
        return self


class Admission(ApiModel):
    """What may be done with admission limits."""

    mode: AdmissionMode = Field(
        AdmissionMode.OFF,
        description="Off (default), Recommend: report the rate and the queue bound that ready "
        "replicas can serve within the objectives, or Auto: write the bound into the object that "
        "via names.",
    )
    via: AdmissionVia | None = Field(
        None,
        description="Where the bound is written. Required when mode is Auto, unless each route "
        "has a bound of its own.",
    )
    proxies: Annotated[Count, Between(1, MAX_PROXIES)] | None = Field(
        None,
        description="How many proxies of the gateway share the bound; by default as many as their "
        "metrics are read of, else 1.",
    )
