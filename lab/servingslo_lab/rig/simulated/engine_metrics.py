"""The metrics pages of simulated engines: vLLM 0.32's own families, and DCGM's for the GPUs.

Names, types, labels and bucket edges equal those of a real capture; a test compares them. Only the
`_created` companions, Python's process metrics and those of the HTTP server are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine

_MEBIBYTES_PER_GIBIBYTE = 1024.0
_PERCENT = 100.0

_Value = Callable[[Engine], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scalars:
    """A gauge or counter family: for each series its labels and the source of its value."""

    name: str
    kind: str
    text: str
    series: tuple[tuple[Mapping[str, str], _Value], ...]
    engine_label: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buckets:
    """A histogram family; number is its index in the engine, None if it stays empty."""

    name: str
    text: str
    number: int | None
    edges: tuple[float, ...] | None = None


def _zero(_: Engine) -> float:
    return 0.0


def _count(place: int) -> _Value:
    return lambda engine: float(engine.counter(place))


def _plain(name: str, kind: str, text: str, value: _Value) -> _Scalars:
    return _Scalars(name=f"vllm:{name}", kind=kind, text=text, series=(({}, value),))


def _by(name: str, kind: str, text: str, label: str, values: Mapping[str, _Value]) -> _Scalars:
    series = tuple(({label: key}, value) for key, value in values.items())
    return _Scalars(name=f"vllm:{name}", kind=kind, text=text, series=series)


def _computed_prompt_tokens(engine: Engine) -> float:
    return float(engine.counter(layout.PROMPT_TOKENS) - engine.counter(layout.CACHED_TOKENS))


_FLOPS = "per GPU (for Model Flops Utilization calculations)."
_EXTERNAL = "from KV connector cross-instance cache sharing, in terms of number of"
_BLOCK_SAMPLED = "Sampled metrics (controlled by --kv-cache-metrics-sample)."
_BLOCK_EDGES = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0,
)  # fmt: skip

_SCALARS: tuple[_Scalars, ...] = (
    _plain(
        "estimated_flops_per_gpu_total", "counter",
        f"Estimated number of floating point operations {_FLOPS}", _zero,
    ),
    _plain(
        "estimated_read_bytes_per_gpu_total", "counter",
        f"Estimated number of bytes read from memory {_FLOPS}", _zero,
    ),
    _plain(
        "estimated_write_bytes_per_gpu_total", "counter",
        f"Estimated number of bytes written to memory {_FLOPS}", _zero,
    ),
    _plain(
        "num_requests_running", "gauge", "Number of requests in model execution batches.",
        lambda engine: float(engine.running),
    ),
    _plain(
        "num_requests_waiting", "gauge", "Number of requests waiting to be processed.",
        lambda engine: float(engine.waiting),
    ),
    _by(
        "num_requests_waiting_by_reason", "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
        "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, "
        "blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
        "reason", {"capacity": lambda engine: float(engine.waiting), "deferred": _zero},
    ),
    _by(
        "engine_sleep_state", "gauge",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        "sleep_state",
        {"awake": lambda _: 1.0, "weights_offloaded": _zero, "discard_all": _zero},
    ),
    _plain(
        "kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.",
        lambda engine: engine.kv_usage_ratio,
    ),
    _plain(
        "prefix_cache_queries_total", "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
        _count(layout.CACHE_QUERIES),
    ),
    _plain(
        "prefix_cache_hits_total", "counter",
        "Prefix cache hits, in terms of number of cached tokens.", _count(layout.CACHE_HITS),
    ),
    _plain(
        "external_prefix_cache_queries_total", "counter",
        f"External prefix cache queries {_EXTERNAL} queried tokens.", _zero,
    ),
    _plain(
        "external_prefix_cache_hits_total", "counter",
        f"External prefix cache hits {_EXTERNAL} cached tokens.", _zero,
    ),
    _plain(
        "mm_cache_queries_total", "counter",
        "Multi-modal cache queries, in terms of number of queried items.", _zero,
    ),
    _plain(
        "mm_cache_hits_total", "counter",
        "Multi-modal cache hits, in terms of number of cached items.", _zero,
    ),
    _plain(
        "num_preemptions_total", "counter", "Cumulative number of preemption from the engine.",
        _count(layout.PREEMPTIONS),
    ),
    _plain(
        "prompt_tokens_total", "counter", "Number of prefill tokens processed.",
        _count(layout.PROMPT_TOKENS),
    ),
    _by(
        "prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.", "source",
        {
            "local_compute": _computed_prompt_tokens,
            "local_cache_hit": _count(layout.CACHED_TOKENS),
            "external_kv_transfer": _zero,
        },
    ),
    _plain(
        "prompt_tokens_cached_total", "counter",
        "Number of cached prompt tokens (local + external).", _count(layout.CACHED_TOKENS),
    ),
    _by(
        "prompt_tokens_cached_by_source_total", "counter",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host "
        "(offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or "
        "external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
        "vllm:external_prefix_cache_hits.",
        "source",
        {
            "device": _count(layout.CACHE_HITS), "host": _zero, "p2p": _zero, "disk": _zero,
            "external_unspecified": _zero,
        },
    ),
    _plain(
        "generation_tokens_total", "counter", "Number of generation tokens processed.",
        _count(layout.GENERATED_TOKENS),
    ),
    _by(
        "request_success_total", "counter", "Count of successfully processed requests.",
        "finished_reason",
        {
            "stop": _count(layout.SUCCESSES), "length": _zero, "abort": _zero, "error": _zero,
            "repetition": _zero,
        },
    ),
    _Scalars(
        name="vllm:admission_rejections_total", kind="counter",
        text="Number of admission attempts rejected by a queue limit, by reason.",
        series=(
            ({"reason": "max_num_queued_reqs"}, _count(layout.REJECTIONS)),
            ({"reason": "max_num_queued_tokens"}, _zero),
        ),
        engine_label=False,
    ),
)  # fmt: skip

_HISTOGRAMS: tuple[_Buckets, ...] = tuple(
    _Buckets(name=f"vllm:{name}", text=text, number=number, edges=edges)
    for name, text, number, edges in (
        ("request_prompt_tokens", "Number of prefill tokens processed.",
         layout.PROMPT_LENGTH, None),
        ("request_generation_tokens", "Number of generation tokens processed.",
         layout.OUTPUT_LENGTH, None),
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.",
         layout.ITERATION, None),
        # Clients of the simulation ask for exactly the tokens they get, one answer at a time.
        ("request_max_num_generation_tokens",
         "Histogram of maximum number of requested generation tokens.", layout.OUTPUT_LENGTH, None),
        ("request_params_n", "Histogram of the n request parameter.", None,
         (1.0, 2.0, 5.0, 10.0, 20.0)),
        ("request_params_max_tokens", "Histogram of the max_tokens request parameter.",
         layout.OUTPUT_LENGTH, None),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.",
         layout.TTFT, None),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.",
         layout.ITL, None),
        ("request_time_per_output_token_seconds",
         "Histogram of time_per_output_token_seconds per request.", layout.TPOT, None),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.",
         layout.E2E, None),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
         layout.QUEUE, None),
        ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
         layout.INFERENCE, None),
        ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
         layout.PREFILL_TIME, None),
        ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
         layout.DECODE_TIME, None),
        ("request_num_preemptions", "Histogram of the number of times a request was preempted.",
         layout.REQUEST_PREEMPTIONS, None),
        ("request_prefill_kv_computed_tokens",
         "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
         layout.COMPUTED_LENGTH, None),
        ("kv_block_lifetime_seconds",
         f"Histogram of KV cache block lifetime from allocation to eviction. {_BLOCK_SAMPLED}",
         None, _BLOCK_EDGES),
        ("kv_block_idle_before_evict_seconds",
         f"Histogram of idle time before KV cache block eviction. {_BLOCK_SAMPLED}",
         None, _BLOCK_EDGES),
        ("kv_block_reuse_gap_seconds",
         ("Histogram of time gaps between consecutive KV cache block accesses. Only the most "
          f"recent accesses are recorded (ring buffer). {_BLOCK_SAMPLED}"), None, _BLOCK_EDGES),
    )
)  # fmt: skip

_CACHE_CONFIG_TEXT = "Information of the LLMEngine CacheConfig"
_CACHE_CONFIG: Mapping[str, str] = {
    "_block_size_resolved": "True", "block_size": "16", "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None", "effective_attention_block_size": "16",
    "enable_mamba_shared_prefix_checkpoint": "False", "enable_prefix_caching": "True",
    "engine": "0", "gpu_memory_utilization": "0.92", "hash_block_size": "None",
    "is_attention_free": "False", "kv_cache_dtype_skip_layers": "[]", "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "None", "kv_cache_memory_bytes": "None",
    "kv_cache_size_tokens": "", "kv_offloading_backend": "native", "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False", "mamba_block_size": "None", "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none", "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32", "num_cpu_blocks": "None", "num_gpu_blocks": "",
    "num_gpu_blocks_override": "None", "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256", "prefix_match_unit": "None",
    "replayssm_buffer_len": "16", "skip_page_size_padded": "None", "sliding_window": "None",
    "swa_bounded_replay": "True", "use_kda_recoverssm": "False", "use_replayssm": "False",
    "user_specified_block_size": "False",
}  # fmt: skip


def label_text(labels: Mapping[str, str]) -> str:
    """Labels in exposition form, sorted by name as the Python client writes them."""
    pairs = (f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def vllm_page(
    engine: Engine,
    *,
    model_name: str,
    nan: bool = False,
    instead: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> str:
    """The `/metrics` page of one engine, as vLLM 0.32 writes it.

    nan: every sample that is not a bucket is NaN, as from a broken exporter. instead: other values
    of some series, by family and the value of the series' own label ('' without one).
    """
    own = {"engine": "0", "model_name": model_name}
    lines: list[str] = []
    for family in _SCALARS:
        base = own if family.engine_label else {"model_name": model_name}
        lines += header(family.name, family.kind, family.text)
        for labels, value in family.series:
            series = (family.name, next(iter(labels.values()), ""))
            number = float("nan") if nan else instead.get(series, value(engine))
            lines.append(f"{family.name}{label_text({**base, **labels})} {_number(number)}")
    for buckets in _HISTOGRAMS:
        lines += header(buckets.name, "histogram", buckets.text)
        lines += _histogram_lines(buckets, engine, model_name, nan=nan)
    lines += header("vllm:cache_config_info", "gauge", _CACHE_CONFIG_TEXT)
    lines.append(f"vllm:cache_config_info{label_text(_cache_config(engine))} 1.0")
    return "\n".join(lines) + "\n"


def asleep_page(page: str) -> str:
    """The page of an engine that sleeps with its weights in the memory of the host (level 1)."""
    states = {"awake": "0.0", "weights_offloaded": "1.0"}
    lines = page.splitlines(keepends=True)
    for place, line in enumerate(lines):
        for state, value in states.items():
            if line.startswith("vllm:engine_sleep_state{") and f'="{state}"' in line:
                lines[place] = f"{line.rpartition(' ')[0]} {value}\n"
    return "".join(lines)


def header(name: str, kind: str, text: str) -> list[str]:
    """The two lines before a family's samples."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    return "NaN" if value != value else repr(float(value))  # noqa: PLR0124 - the test for NaN


def _histogram_lines(
    family: _Buckets, engine: Engine, model_name: str, *, nan: bool
) -> Iterator[str]:
    if family.number is None:
        edges = family.edges or ()
        ended = engine.counter(layout.SUCCESSES) if family.name == "vllm:request_params_n" else 0
        counts: Iterable[int] = [ended] * (len(edges) + 1)
        total, count = float(ended), ended
    else:
        histogram = engine.histogram(family.number)
        edges, counts = histogram.upper_bounds, histogram.cumulative_counts
        total, count = histogram.sum, histogram.count
    model = _escaped(model_name)
    for edge, number in zip([*map(repr, edges), "+Inf"], counts, strict=True):
        yield f'{family.name}_bucket{{engine="0",le="{edge}",model_name="{model}"}} {number}.0'
    labels = f'{{engine="0",model_name="{model}"}}'
    yield f"{family.name}_count{labels} {_number(float('nan') if nan else count)}"
    yield f"{family.name}_sum{labels} {_number(float('nan') if nan else total)}"


def _cache_config(engine: Engine) -> dict[str, str]:
    blocks = engine.kv_block_count
    return {
        **_CACHE_CONFIG,
        "num_gpu_blocks": str(blocks),
        "kv_cache_size_tokens": str(blocks * layout.PHASES),
        "kv_cache_max_concurrency": repr(blocks * layout.PHASES / engine.max_model_len),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUReading:
    """DCGM's values for the only GPU of a pod. Sizes in MiB, power in watts."""

    namespace: str
    pod: str
    container: str
    node: str
    index: int
    utilization_ratio: float
    kv_usage_ratio: float
    memory_mebibytes: float = 80.0 * _MEBIBYTES_PER_GIBIBYTE
    idle_watts: float = 70.0
    busy_watts: float = 500.0
    xid_error: int = 0
    product: str = "NVIDIA H100 80GB HBM3"


_WEIGHTS_SHARE = 0.9  # vLLM's default gpu_memory_utilization is allocated at start-up

_DCGM: tuple[tuple[str, str, Callable[[GPUReading], float]], ...] = (
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).",
     lambda gpu: round(_PERCENT * gpu.utilization_ratio)),
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).",
     lambda gpu: round(gpu.memory_mebibytes * (1 - _WEIGHTS_SHARE))),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).",
     lambda gpu: round(gpu.memory_mebibytes * _WEIGHTS_SHARE)),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).",
     lambda gpu: gpu.idle_watts + (gpu.busy_watts - gpu.idle_watts) * gpu.utilization_ratio),
    ("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.",
     lambda gpu: gpu.xid_error),
)  # fmt: skip


def dcgm_page(readings: Iterable[GPUReading], *, exported_labels: bool = False) -> str:
    """The page of the DCGM exporters of all nodes; one GPU for each pod.

    exported_labels: name the pod by exported_namespace, exported_pod and exported_container, as
    it is stored when Prometheus scrapes the exporter without honorLabels.
    Source: NVIDIA/dcgm-exporter, etc/default-counters.csv (names, help, units).
    """
    prefix = "exported_" if exported_labels else ""
    gpus = list(readings)
    lines: list[str] = []
    for name, text, value in _DCGM:
        lines += header(name, "gauge", text)
        for gpu in gpus:
            labels = {
                "gpu": str(gpu.index),
                "UUID": f"GPU-{gpu.node}-{gpu.index}",
                "device": f"nvidia{gpu.index}",
                "modelName": gpu.product,
                "Hostname": gpu.node,
                f"{prefix}namespace": gpu.namespace,
                f"{prefix}pod": gpu.pod,
                f"{prefix}container": gpu.container,
            }
            lines.append(f"{name}{label_text(labels)} {value(gpu)}")
    return "\n".join(lines) + "\n"
