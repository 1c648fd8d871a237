"""The metrics of an engine with vLLM's NIXL connector: what came from another engine's KV cache."""

from collections.abc import Iterator, Mapping

from servingslo_lab.rig.simulated.engine_metrics import header, label_text, vllm_page
from servingslo_lab.rig.simulated.kv_transfers import Observations, TransferCounts
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine

# Source: vLLM 0.32 NixlPromMetrics.
_HISTOGRAMS = (
    ("vllm:nixl_xfer_time_seconds", "Histogram of transfer duration for NIXL KV Cache transfers."),
    ("vllm:nixl_bytes_transferred", "Histogram of bytes transferred per NIXL KV Cache transfers."),
)
_ON_P = "NOTE: This metric is tracked on the P instance."
_COUNTERS = (
    ("vllm:nixl_num_failed_transfers_total", "Number of failed NIXL KV Cache transfers."),
    (
        "vllm:nixl_num_kv_expired_reqs_total",
        f"Number of requests that had their KV expire. {_ON_P}",
    ),
)


def engine_page(
    engine: Engine, counts: TransferCounts | None, *, model_name: str, nan: bool = False
) -> str:
    """The `/metrics` page of an engine; counts: of its connector, None without one.

    See `vllm_page`.
    """
    if counts is None:
        return vllm_page(engine, model_name=model_name, nan=nan)
    page = vllm_page(engine, model_name=model_name, nan=nan, instead=_instead(engine, counts))
    own = {"engine": "0", "model_name": model_name}
    lines: list[str] = []
    for (name, text), found in zip(_HISTOGRAMS, (counts.seconds, counts.bytes), strict=True):
        lines += header(name, "histogram", text)
        lines += _histogram(name, own, found)
    for (name, text), number in zip(_COUNTERS, (counts.failed, counts.expired), strict=True):
        lines += header(name, "counter", text)
        lines.append(f"{name}{label_text(own)} {float(number)}")
    return page + "\n".join(lines) + "\n"


def _instead(engine: Engine, counts: TransferCounts) -> Mapping[tuple[str, str], float]:
    """Values that differ from those of an engine without a connector."""
    local_hits = float(engine.counter(layout.CACHE_HITS) - counts.hit_tokens)
    local_prompts = float(engine.counter(layout.CACHED_TOKENS) - counts.prompt_tokens)
    read = float(counts.hit_tokens)
    waiting = "vllm:num_requests_waiting_by_reason"
    prompts = "vllm:prompt_tokens_by_source_total"
    tiers = "vllm:prompt_tokens_cached_by_source_total"
    return {
        ("vllm:num_requests_waiting", ""): float(engine.waiting + counts.waiting),
        (waiting, "deferred"): float(counts.waiting),
        ("vllm:prefix_cache_hits_total", ""): local_hits,
        ("vllm:external_prefix_cache_queries_total", ""): read,
        ("vllm:external_prefix_cache_hits_total", ""): read,
        (prompts, "local_cache_hit"): local_prompts,
        (prompts, "external_kv_transfer"): float(counts.prompt_tokens),
        (tiers, "device"): local_hits,
        (tiers, "p2p"): read,
    }


def _histogram(name: str, own: Mapping[str, str], found: Observations) -> Iterator[str]:
    cumulative = found.cumulative()
    for edge, count in zip([*map(repr, found.edges), "+Inf"], cumulative, strict=True):
        yield f"{name}_bucket{label_text({**own, 'le': edge})} {count}.0"
    yield f"{name}_count{label_text(own)} {cumulative[-1]}.0"
    yield f"{name}_sum{label_text(own)} {found.sum!r}"
