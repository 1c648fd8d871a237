"""What is stated of one set of equal replicas, of the only one or of each pool: its fields.

The field objects below are shared by the spec and by its pools, so that both say the same.
"""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from servingslo.api.constraints import (
    Between,
    Count,
    DurationBetween,
    Number,
    cel_rule,
    not_allowed,
)
from servingslo.api.patterns import (
    API_VERSION_NAME,
    CURRENCY_CODE,
    DNS_NAME,
    KIND_NAME,
    RUNTIME_NAME,
)
from servingslo.api.spec_base import ApiModel, with_rules
from servingslo.api.v1alpha1.capacity import MAX_GPUS, KVCache, Replicas, Utilization
from servingslo.api.v1alpha1.knobs import Batching, Engine
from servingslo.runtimes.catalogue import AUTO_RUNTIME, CATALOGUE, names

KIND = "ServingSLO"
# Of KServe: makes one workload for prefill and another for the rest.
LLM_INFERENCE_SERVICE = "LLMInferenceService"
PREFILL_PART = "prefill"
# Above any card in use, in any currency that is counted in tens per dollar.
MAX_GPU_HOURLY = 10_000


GpusPerReplica = Annotated[Count, Between(1, MAX_GPUS)]


class TargetRef(ApiModel):
    """The workload that is scaled."""

    model_config = with_rules(
        cel_rule(
            f"self.kind != '{KIND}'",
            allowed=f"any kind with a /scale subresource, not {KIND} itself",
            got="%s",
            values=("self.kind",),
            field_path=".kind",
        )
    )

    api_version: Annotated[str, API_VERSION_NAME] = Field(
        "apps/v1", description="API version of the workload, apps/v1 by default."
    )
    kind: Annotated[str, KIND_NAME] = Field(
        description="Kind of the workload: Deployment or StatefulSet. KServe's LLMInferenceService "
        "and InferenceService stand for the workload that they make. Another kind with a /scale "
        "subresource needs the chart's extraScalableKinds."
    )
    name: Annotated[str, DNS_NAME] = Field(
        description="Name of the workload, in the namespace of this resource."
    )

    @model_validator(mode="after")
    def _not_itself(self) -> Self:
        if self.kind == KIND:
            allowed = f"any kind with a /scale subresource, not {KIND} itself"
            raise not_allowed(allowed, path=("kind",), value=self.kind)
        return self


class Cost(ApiModel):
    """The price of a replica, so that plans are priced as well."""

    gpu_hourly: Annotated[Number, Between(0.001, MAX_GPU_HOURLY)] = Field(
        description="Price of one GPU for an hour, 0.001 to 10000."
    )
    gpus_per_replica: GpusPerReplica | None = Field(
        None,
        description="GPUs of one replica in its price, 1 to 1024; by default the gpusPerReplica "
        "next to cost, else 1. Where that one is absent, this number counts for it.",
    )
    currency: Annotated[str, CURRENCY_CODE] = Field(
        "USD", description="Currency of the price, three capital letters; USD by default."
    )


class Gateway(ApiModel):
    """How the gateway knows the workload, where the administrator has one read."""

    name: Annotated[str, DNS_NAME] | None = Field(
        None,
        description="Name of the HTTPRoute (Envoy Gateway), InferencePool (inference extension) "
        "or workload (Istio) in this namespace; by default targetRef.name.",
    )


def _known(runtime: str) -> str:
    if runtime not in (AUTO_RUNTIME, *names()):
        raise not_allowed(", ".join((AUTO_RUNTIME, *names())))
    return runtime


RuntimeName = Annotated[str, RUNTIME_NAME, AfterValidator(_known)]
ColdStart = Annotated[str, DurationBetween("1s", "24h", word="Measured")]

RUNTIME: Any = Field(
    AUTO_RUNTIME,
    description="The engine, which decides names of metrics and flags: Auto (default: the one "
    f"whose metrics the pods export), {', '.join(one.name for one in CATALOGUE)}, or one that "
    "the administrator added.",
)
REPLICAS: Any = Field(Replicas(), description="Bounds on the replica count.")
UTILIZATION: Any = Field(Utilization(), description="Bound on utilization.")
KV_CACHE: Any = Field(KVCache(), description="Bound on KV cache use.")
COLD_START: Any = Field(
    "Measured",
    description="Time from ordering a replica until it serves: Measured (default, from this "
    "workload's own pods) or a duration from 1s to 24h.",
)
SERVICE_LAW: Any = Field(
    None,
    description="Time of an engine's step, as `servingslo fit` found it on the same engine: "
    "used while no law fitted here is trusted, and only while it predicts the measurements. "
    "Without one, measured saturation decides until then.",
)
ENGINE: Any = Field(
    Engine(),
    description="Limits that the engine runs with, if no other source has them or it is wrong.",
)
BATCHING: Any = Field(Batching(), description="Batch limits of the engine.")
GPUS_PER_REPLICA: Any = Field(
    None,
    description="GPUs of one replica where GPUs are bounded, 1 to 1024; by default those of the "
    "pod template, and no fewer than its whole cards.",
)
COST: Any = Field(None, description="Price of a replica; without one no costs are reported.")
