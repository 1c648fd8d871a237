"""SGLang, by contract: names and flags of the published wheel, not tried on a server.

Source: the wheel of SGLang 0.5.23, sglang/srt/observability/metrics_collector.py (started with
`--enable-metrics`) and sglang/srt/arg_groups/fields/schedule.py. tests/contracts/sglang.json keeps
the values; `make contracts` reads them again. The second and further names are those of 0.4, from
its page of the production metrics (docs.sglang.io). time_per_output_token_seconds counts gaps
there: 422,425 for 2,104 requests with 424,529 tokens.
"""

from servingslo.runtimes.profile import (
    Knob,
    LaunchFlags,
    RuntimeProfile,
    counter,
    gauge,
    histogram,
)

# The scheduler counts tokens during generation, at each log interval (40 steps by default). The
# counters prompt_tokens_total and generation_tokens_total rise by a whole request at its end, which
# looks like impossible work in a short window. They are used only if an older SGLang exports no
# others. A request's first token is produced with its prompt and is not among the decoded ones. The
# tokenizer counts requests and those older counters once, without a dp_rank, for any number of
# ranks.
_TOKENS = "sglang:realtime_tokens_total"

SGLANG = RuntimeProfile(
    name="sglang",
    # Without data parallelism there is no such label, and the pod holds one engine.
    engine_label="dp_rank",
    # With --enable-priority-scheduling a request is counted under its priority alone. Gauges have a
    # total beside those of each priority.
    part_labels=("model_name", "is_streaming", "cache_source", "priority"),
    # With --tokenizer-metrics-allowed-custom-labels, from a header of the request.
    requests_have_labels=True,
    metrics=(
        gauge("running", "sglang:num_running_reqs"),
        gauge("waiting", "sglang:num_queue_reqs"),
        gauge("kv_usage_ratio", "sglang:token_usage"),
        gauge("kv_capacity_tokens", "sglang:max_total_num_tokens"),
        counter(
            "prompt_tokens_total",
            _TOKENS,
            by_labels=("mode",),
            only=("prefill_compute", "prefill_cache"),
            undivided=("sglang:prompt_tokens_total",),
        ),
        counter(
            "cached_prompt_tokens_total",
            _TOKENS,
            by_labels=("mode",),
            only=("prefill_cache",),
            undivided=("sglang:cached_tokens_total",),
        ),
        counter(
            "generation_tokens_total",
            _TOKENS,
            by_labels=("mode",),
            only=("decode",),
            undivided=("sglang:generation_tokens_total",),
        ),
        # Split by streaming or not: the finish reasons are not exported.
        counter("finished_total", "sglang:num_requests_total", by_labels=("is_streaming",)),
        counter("aborted_total", "sglang:num_aborted_requests_total"),
        counter("preempted_total", "sglang:num_retracted_requests_total"),
        histogram("ttft_seconds", "sglang:time_to_first_token_seconds"),
        histogram(
            "inter_token_seconds",
            "sglang:inter_token_latency_seconds",
            "sglang:time_per_output_token_seconds",
        ),
        histogram("time_per_output_token_seconds", "sglang:request_time_per_output_token_seconds"),
        histogram("latency_seconds", "sglang:e2e_request_latency_seconds"),
        histogram(
            "queue_seconds", "sglang:queue_time_seconds", "sglang:waiting_request_latency_seconds"
        ),
        histogram(
            "prompt_tokens", "sglang:prompt_tokens_histogram", "sglang:request_prompt_tokens"
        ),
        histogram(
            "output_tokens",
            "sglang:generation_tokens_histogram",
            "sglang:request_generation_tokens",
        ),
    ),
    capacity=None,
    # Both need a restart. Defaults depend on the card's memory and the model, so without the flag
    # the limit is unknown until data show it or spec.engine states it.
    knobs=(
        # Newer versions divide it for ranks of any kind. Source: _resolve_max_num_reqs of
        # sglang/srt/model_executor/model_runner_kv_cache_mixin.py.
        Knob(field="max_num_seqs", flag="--max-running-requests", divided_by="--dp-size"),
        # -1 turns chunking off. Then --max-prefill-tokens bounds a batch of prompts, never below
        # the longest sequence. Source: docs/advanced_features/server_arguments.md.
        Knob(
            field="max_num_batched_tokens",
            flag="--chunked-prefill-size",
            off=frozenset({"-1", "0"}),
            when_off=("--max-prefill-tokens", 16384),
        ),
    ),
    underscores_in_flags=False,
    starts=("sglang.launch_server", "sglang serve", "dynamo.sglang"),
    hosts=("dynamo.sglang",),
    launch=LaunchFlags(
        max_model_len="--context-length",
        other_files=("--config",),
        short_names=(("--dp", "--dp-size"), ("--data-parallel-size", "--dp-size")),
        # Dynamo registers SGLang's metrics only with the flag too: components/src/dynamo/sglang.
        metrics_on="--enable-metrics",
        # Source: sglang/srt/server_args.py: `chunked_prefill_size // dp_size`; same for requests.
        divided_by_ranks="--enable-dp-attention",
        nodes="--nnodes",
        rank="--node-rank",
    ),
)
