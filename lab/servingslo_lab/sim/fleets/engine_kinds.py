"""Known cards with a model on them, as service laws for sizing and simulation by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.known_engines import known_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One card with one model: its service law, default limits, price and label.

    price_per_hour: in dollars. gpu_product: as the GPU operator labels nodes.
    """

    name: str
    law: ServiceLaw
    limits: EngineLimits
    price_per_hour: float
    gpu_product: str


def _measured(name: str, card: str, model: str, product: str, price_per_hour: float) -> EngineKind:
    """A kind whose law and KV cache are those of measured kernels, with vLLM's former limits."""
    known = known_engine(card, model)
    return EngineKind(
        name=name,
        law=known.law,
        limits=EngineLimits(
            max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=known.kv_tokens
        ),
        price_per_hour=price_per_hour,
        gpu_product=product,
    )


# The first two are in every published comparison of this project: a model of 8 billion on a large
# card, and on a small one whose KV cache binds before its batch limit. Their laws are judgement,
# not measured: beside measured kernels of Llama 3.1 8B on an H100, b and c of h100-8b are higher.
# The others come from measured kernels (`known_engines`). Prices are rounded on-demand list prices
# of 2025.
_KINDS = (
    EngineKind(
        name="h100-8b",
        law=ServiceLaw(
            step_fixed_seconds=6.5e-3,
            step_per_sequence_seconds=0.04e-3,
            prefill_per_token_seconds=0.03e-3,
            context_per_token_seconds=0.05e-6,
        ),
        limits=EngineLimits(
            max_num_seqs=256, max_num_batched_tokens=8192, kv_capacity_tokens=400_000
        ),
        price_per_hour=4.0,
        gpu_product="NVIDIA-H100-80GB-HBM3",
    ),
    EngineKind(
        name="l4-small",
        law=ServiceLaw(
            step_fixed_seconds=15e-3,
            step_per_sequence_seconds=0.15e-3,
            prefill_per_token_seconds=0.08e-3,
            context_per_token_seconds=0.4e-6,
        ),
        limits=EngineLimits(
            max_num_seqs=64, max_num_batched_tokens=2048, kv_capacity_tokens=60_000
        ),
        price_per_hour=0.8,
        gpu_product="NVIDIA-L4",
    ),
    _measured("h100-llama-8b", "h100", "llama-3.1-8b", "NVIDIA-H100-80GB-HBM3", 4.0),
    _measured("h100-qwen-30b", "h100", "qwen3-30b-a3b", "NVIDIA-H100-80GB-HBM3", 4.0),
    _measured("l40s-llama-8b", "l40s", "llama-3.1-8b", "NVIDIA-L40S", 1.9),
)

ENGINE_KINDS: Mapping[str, EngineKind] = MappingProxyType({kind.name: kind for kind in _KINDS})


def engine_kind(name: str) -> EngineKind:
    """Return the kind with this name.

    Raises: InvalidInputError if there is none.
    """
    kind = ENGINE_KINDS.get(name)
    if kind is None:
        raise InvalidInputError("engine kind", name, ", ".join(ENGINE_KINDS))
    return kind
