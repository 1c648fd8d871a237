"""TensorRT-LLM's trtllm-serve, by contract: names and flags of its sources, not tried.

Source: NVIDIA/TensorRT-LLM, tensorrt_llm/metrics/collector.py at 050f80d and
tensorrt_llm/commands/serve.py at 00209af. tests/contracts/trtllm.json keeps the values. The page is
/prometheus/metrics. It has requests with `return_perf_metrics: true`, and gauges of the batch with
`enable_iter_perf_stats: true`, both in the file of --config.

It exports no gaps between tokens and no tokens by step, so no law is fitted. It exports no lengths,
so they are assumed exponential around their means. All counts of a request are made at its end,
also the one of its first token.
"""

from servingslo.runtimes.profile import (
    Knob,
    LaunchFlags,
    RuntimeProfile,
    counter,
    gauge,
    histogram,
)

TRTLLM = RuntimeProfile(
    name="trtllm",
    # Its pod has one engine: with attention data parallelism, only the first rank is exported.
    engine_label="engine",
    part_labels=("model_name", "engine_type"),
    metrics=(
        gauge("running", "trtllm_num_requests_running"),
        gauge("waiting", "trtllm_num_requests_waiting"),
        gauge("kv_usage_ratio", "trtllm_kv_cache_utilization"),
        gauge("kv_capacity_tokens", "trtllm_kv_cache_max_blocks"),
        gauge("kv_block_tokens", "trtllm_kv_cache_tokens_per_block"),
        gauge("num_seqs_in_force", "trtllm_max_batch_size_runtime"),
        gauge("batched_tokens_in_force", "trtllm_max_num_tokens_runtime"),
        counter("prompt_tokens_total", "trtllm_prompt_tokens_total"),
        counter("cached_prompt_tokens_total", "trtllm_prompt_cached_tokens_total"),
        counter("generation_tokens_total", "trtllm_generation_tokens_total"),
        counter("finished_total", "trtllm_request_success_total", by_labels=("finished_reason",)),
        counter("failed_total", "trtllm_request_error_total"),
        histogram("ttft_seconds", "trtllm_time_to_first_token_seconds"),
        histogram("time_per_output_token_seconds", "trtllm_time_per_output_token_seconds"),
        histogram("latency_seconds", "trtllm_e2e_request_latency_seconds"),
        histogram("queue_seconds", "trtllm_request_queue_time_seconds"),
    ),
    capacity=None,
    # Click accepts only the exact spelling: no dashes for underscores, no abbreviations.
    knobs=(
        Knob(field="max_num_seqs", flag="--max_batch_size"),
        Knob(field="max_num_batched_tokens", flag="--max_num_tokens"),
    ),
    underscores_in_flags=False,
    starts=("trtllm-serve", "dynamo.trtllm"),
    hosts=("dynamo.trtllm",),
    abbreviations=False,
    launch=LaunchFlags(
        max_model_len="--max_seq_len",
        # The last two are of Dynamo's worker.
        other_files=(
            "--config",
            "--extra_llm_api_options",
            "--extra-engine-args",
            "--override-engine-args",
        ),
    ),
)
