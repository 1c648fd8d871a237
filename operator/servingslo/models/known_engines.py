"""What an engine does before anybody measured it, from the names of its card and its model.

A law that was fitted to step times of measured kernels of this model on this card, else a roofline:
weights and KV cache at a share of the card's bandwidth, tokens at a share of its compute. The
shares, and how far the roofline was away on cards and models left out of them, are in the data.
Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009); of each figure, the data
file beside this one, which `python -m tests.silicon.laws` makes.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from servingslo.errors import InvalidInputError
from servingslo.models.engine.kv_cache import kv_capacity_tokens
from servingslo.models.engine.service_time import ServiceLaw

DATA = Path(__file__).with_suffix(".json")
# Share of a card that vLLM uses, and what graphs and activations take of that.
# Source: vLLM, --gpu-memory-utilization; `other_mem` of the package that the data name.
USED_RATIO, RESERVE_BYTES = 0.9, 3_758_096_384
# Bytes of a weight, by words in a model's name; with its scales, four bits are 4.25.
_PRECISIONS = dict.fromkeys(("fp8", "int8", "w8a8"), 1.0) | dict.fromkeys(
    ("awq", "gptq", "int4", "w4a16", "fp4", "nvfp4", "mxfp4", "4bit"), 0.53125
)
_HALF_BYTES = 2.0
# Models named like one that generates, whose requests are other work.
_NOT_GENERATIVE = frozenset(
    ("embed", "embedding", "embeddings", "rerank", "reranker", "reward", "rm", "classifier")
)
# Billions of parameters, and GPUs of one replica: beyond every model and server there is.
LEAST_SIZE, MOST_SIZE, MOST_GPUS = 0.05, 10_000, 1024
# A part of a card is none: its share of bandwidth and compute is not in its name.
_PARTS = frozenset({"mig", "shared", "nvl"})
# A product with less memory is another card; gigabytes of a product's name are up to a tenth fewer.
_SAME_MEMORY = 0.85
# KV cache and layers of a model of which only the size is known, from one of 8 billion.
# Source: a power law through the models of the data, within 25 % of each; `kv_bytes` there.
_REFERENCE_PARAMETERS, _REFERENCE_KV_BYTES, _REFERENCE_LAYERS = 8e9, 131_072.0, 32.0
_KV_POWER, _LAYERS_POWER = 0.4, 0.35
# What all layers send for a token, bytes for the reference and its power: two sums of 2 bytes by
# width times layers, there and back.
_SENT_BYTES, _SENT_POWER = 8.0 * 4096 * 32, 0.7
# Experts over those of one token, per parameters over active ones; 1.3 to 1.75 in the data.
_EXPERTS_RATIO = 1.5
# From here on parameters are those of experts, and not of a table of words.
_LEAST_EXPERTS_RATIO = 1.05
# Cards that only PCIe connects: their sums over more than two fit no rule.
FAST_LINK, MOST_WITHOUT_LINK = 1e11, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card: bytes, bytes a second of memory and of the link to another card, 16-bit flops."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    link: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model: parameters, those of a token's path, bytes of weights and of a token's KV cache."""

    name: str
    parameters: float
    active: float
    weights: float
    kv_bytes: float

    @property
    def has_experts(self) -> bool:
        """Whether a token takes only a part of the weights."""
        return self.parameters > _LEAST_EXPERTS_RATIO * self.active


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What of a card's figures is reached, and what a step has besides; fitted to the tables.

    weights, experts, cache: of the bandwidth. compute: of the flops. hidden: of the tokens at which
    compute takes as long as loading. loading: of the time for weights. loading_tokens: over hidden,
    and over experts for a model with some. layer, link_layer: seconds of a layer, alone and beside
    other cards. sent: times what layers send.
    """

    weights: float
    experts: float
    cache: float
    compute: float
    hidden: float
    loading: float
    loading_tokens: float
    expert_tokens: float
    layer: float
    link_layer: float
    sent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEngine:
    """A law that nobody measured here, and the tokens that the KV cache of these GPUs holds.

    error_ratios: of its steps beside those measured of this model on this card, mean and 95th
    percentile; None for a roofline. left_out: of rooflines of such models, by what was left out,
    card or model: of steps, mean and 95th percentile, and of what a replica serves, mean.
    """

    card: Card
    model: Model
    gpus: int
    law: ServiceLaw
    kv_tokens: float
    error_ratios: tuple[float, float] | None
    left_out: Mapping[str, tuple[float, float, float]]


def known_engine(
    card: str,
    model: str,
    gpus: int = 1,
    *,
    fields: tuple[str, str, str] = ("card", "model", "gpus"),
) -> KnownEngine:
    """Return what is known of this model on so many of this card.

    card: a known name, or a product that has its words, such as NVIDIA-H100-80GB-HBM3. model: a
    known name, or one with its size, such as my-13b or my-30b-a3b. fields: how errors name them.
    Raises: InvalidInputError for names that say too little, and where the weights do not fit.
    """
    data = _data()
    found, sized = card_named(card, fields[0]), model_named(model, fields[1])
    tokens = kv_tokens(sized, found, gpus)
    if tokens < 1.0:
        counts = range(gpus + 1, MOST_GPUS + 1)
        least = next((n for n in counts if kv_tokens(sized, found, n) >= 1.0), None)
        allowed = f"no count up to {MOST_GPUS}" if least is None else f"{least} or more"
        weights = f"the weights take {sized.weights / 1e9:.0f} GB"
        raise InvalidInputError(fields[2], gpus, f"{allowed}: {weights}")
    row = data["laws"].get(f"{found.name}/{sized.name}/{gpus}")
    if row is None and gpus > MOST_WITHOUT_LINK and found.link < FAST_LINK:
        allowed = (
            f"1 to {MOST_WITHOUT_LINK} of {found.name}, or a law that was measured (serviceLaw)"
        )
        raise InvalidInputError(fields[2], gpus, allowed)
    law = roofline(sized, found, gpus, Shares(**data["shares"]))
    if row is not None:
        law = ServiceLaw(**dict(zip(data["law"], row, strict=False)))
    kind = "experts" if sized.has_experts else "dense"
    return KnownEngine(
        card=found,
        model=sized,
        gpus=gpus,
        law=law,
        kv_tokens=tokens,
        error_ratios=None if row is None else (row[-2], row[-1]),
        left_out={what: tuple(kinds[kind]) for what, kinds in data["left_out"].items()},
    )


def card_named(text: str, field: str = "card") -> Card:
    """Return the card whose words are all in this name. Raises: InvalidInputError."""
    cards, words = _data()["cards"], _words(text)
    name = None if words & _PARTS else _fullest(cards, words)
    memory = [float(word[:-2]) * 1e9 for word in words if re.fullmatch(r"\d+gb", word)]
    if name is None or any(size < _SAME_MEMORY * cards[name]["memory"] for size in memory):
        allowed = f"a whole card, with one of {', '.join(cards)}; for others state serviceLaw"
        raise InvalidInputError(field, text, allowed)
    return Card(name=name, **cards[name])


def model_named(text: str, field: str = "model") -> Model:
    """Return the model whose words are all in this name, else one of the size in it.

    Raises: InvalidInputError for a name without both, or of a model that generates nothing.
    """
    data, words = _data(), _words(text.rsplit("/", 1)[-1])
    precision = words & _PRECISIONS.keys()
    allowed = (
        f"a model that generates: {', '.join(data['models'])}, or a name with the size from "
        f"{LEAST_SIZE}b to {MOST_SIZE}b: 13b, 30b-a3b"
    )
    if words & _NOT_GENERATIVE:
        raise InvalidInputError(field, text, allowed)
    name = None if precision else _fullest({**data["models"], **data["aliases"]}, words)
    if name is not None:
        name = data["aliases"].get(name, name)
        return Model(name=name, **data["models"][name])
    sizes = [float(w[:-1]) for w in words if re.fullmatch(r"\d+(\.\d+)?b", w)]
    active = [float(w[1:-1]) for w in words if re.fullmatch(r"a\d+(\.\d+)?b", w)]
    unclear = any(re.fullmatch(r"\d+e|\d+x\d+(\.\d+)?b", w) for w in words)
    unclear = unclear or len(sizes) != 1 or len(active) > 1
    if unclear or not LEAST_SIZE <= (active or sizes)[0] <= sizes[0] <= MOST_SIZE:
        raise InvalidInputError(field, text, allowed)
    weight_bytes = min((_PRECISIONS[word] for word in precision), default=_HALF_BYTES)
    return sized_model(text, sizes[0] * 1e9, (active or sizes)[0] * 1e9, weight_bytes)


def sized_model(name: str, parameters: float, active: float, weight_bytes: float) -> Model:
    """Return a model of which only the size is known; bytes of one weight."""
    kv_bytes = _REFERENCE_KV_BYTES * (active / _REFERENCE_PARAMETERS) ** _KV_POWER
    stored = parameters * weight_bytes
    return Model(name=name, parameters=parameters, active=active, weights=stored, kv_bytes=kv_bytes)


def kv_tokens(model: Model, card: Card, gpus: int) -> float:
    """Return the tokens that the KV cache of these GPUs holds; 0 where the weights do not fit."""
    used, reserve = USED_RATIO * card.memory * gpus, float(RESERVE_BYTES * gpus)
    return kv_capacity_tokens(used, model.weights, reserve, model.kv_bytes)


def roofline(model: Model, card: Card, gpus: int, shares: Shares) -> ServiceLaw:
    """Return the law that size, precision, bandwidth and compute give, each GPU with its part."""
    bandwidth, flops = gpus * card.bandwidth, gpus * card.flops
    weight_bytes, spread = model.weights / model.parameters, model.parameters / model.active
    experts = (model.parameters - model.active) / (1.0 - 1.0 / (_EXPERTS_RATIO * spread))
    experts = min(experts, model.parameters) if model.has_experts else 0.0
    layers = _REFERENCE_LAYERS * (model.parameters / _REFERENCE_PARAMETERS) ** _LAYERS_POWER
    always = (model.parameters - experts) * weight_bytes / (bandwidth * shares.weights)
    token = 2.0 * model.active / (flops * shares.compute)
    sent = _SENT_BYTES * (model.active / _REFERENCE_PARAMETERS) ** _SENT_POWER / card.link
    ridge = model.active * weight_bytes / (bandwidth * shares.weights) / token
    loading, loading_tokens = shares.loading * always, shares.loading_tokens * ridge
    if experts:
        loading = experts * weight_bytes / (bandwidth * shares.experts)
        loading_tokens = shares.expert_tokens * _EXPERTS_RATIO * spread
    return ServiceLaw(
        step_fixed_seconds=always + layers * (shares.layer + (gpus > 1) * shares.link_layer),
        step_per_sequence_seconds=0.0,
        prefill_per_token_seconds=token + shares.sent * sent * (gpus - 1) / gpus,
        context_per_token_seconds=model.kv_bytes / (bandwidth * shares.cache),
        loading_seconds=loading,
        loading_tokens=loading_tokens,
        hidden_tokens=shares.hidden * ridge,
    )


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return dict(json.loads(DATA.read_text(encoding="utf-8")))


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in re.split(r"[^a-z0-9.]+", text.lower()) if word)


def _fullest(names: Iterable[str], words: frozenset[str]) -> str | None:
    """The name of most words that are all among these; None without one."""
    fitting = [name for name in names if _words(name) <= words]
    return max(fitting, key=lambda name: (len(_words(name)), len(name)), default=None)
