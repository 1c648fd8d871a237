"""vLLM (V1 engine).

Source: a capture of vLLM 0.32.0 under load (tests/golden/data/vllm_0.32.0_metrics.txt) for the
first name of each metric; vllm/v1/metrics/loggers.py and docs.vllm.ai (usage/metrics) of 0.8 to
0.11 for the older ones. gpu_cache_usage_perc and gpu_prefix_cache_hits were renamed by
vllm-project/vllm#18354 and removed by #29330; time_per_output_token_seconds was renamed to
inter_token_latency_seconds by #24110. Every counter also has a _created series, the time of its
first increment; it is never read.
"""

from servingslo.runtimes.engines.vllm_defaults import default_limits, doubts
from servingslo.runtimes.engines.vllm_images import other_defaults, starts_vllm
from servingslo.runtimes.launch.config_file import CONFIG_FLAG
from servingslo.runtimes.profile import (
    AdapterLabels,
    CapacityLabels,
    Knob,
    LaunchFlags,
    RuntimeProfile,
    SleepApi,
    counter,
    gauge,
    histogram,
)

VLLM = RuntimeProfile(
    name="vllm",
    engine_label="engine",
    part_labels=("model_name", "reason"),
    metrics=(
        gauge("running", "vllm:num_requests_running"),
        gauge("waiting", "vllm:num_requests_waiting"),
        gauge("waiting_by_reason", "vllm:num_requests_waiting_by_reason", by_labels=("reason",)),
        gauge("kv_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        gauge("sleep_states", "vllm:engine_sleep_state", by_labels=("sleep_state",)),
        counter("prompt_tokens_total", "vllm:prompt_tokens_total"),
        counter(
            "cached_prompt_tokens_total",
            "vllm:prompt_tokens_cached_total",
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
        ),
        counter("generation_tokens_total", "vllm:generation_tokens_total"),
        # Only with speculative decoding; a part of the generated tokens.
        counter("accepted_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
        # The simulator of llm-d names the label finish_reason.
        counter(
            "finished_total",
            "vllm:request_success_total",
            by_labels=("finished_reason", "finish_reason"),
        ),
        counter("preempted_total", "vllm:num_preemptions_total"),
        # Counted by the API server, so it carries no engine label: it belongs to the whole pod.
        counter("rejected_total", "vllm:admission_rejections_total"),
        histogram("ttft_seconds", "vllm:time_to_first_token_seconds"),
        histogram(
            "inter_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
        ),
        histogram("time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"),
        histogram("latency_seconds", "vllm:e2e_request_latency_seconds"),
        histogram("queue_seconds", "vllm:request_queue_time_seconds"),
        histogram("prefill_seconds", "vllm:request_prefill_time_seconds"),
        histogram("decode_seconds", "vllm:request_decode_time_seconds"),
        histogram("prompt_tokens", "vllm:request_prompt_tokens"),
        histogram("output_tokens", "vllm:request_generation_tokens"),
        # A histogram in spite of its name: its _count counts engine steps.
        histogram("iteration_tokens", "vllm:iteration_tokens_total"),
        # Of the connector NIXL, on the engine that reads the cache.
        histogram("transfer_seconds", "vllm:nixl_xfer_time_seconds"),
    ),
    # In the capture: 2,048 blocks of 128 tokens and kv_cache_size_tokens="262144". It has no
    # model_name label, so it is joined by pod.
    capacity=CapacityLabels(
        metric="vllm:cache_config_info",
        tokens="kv_cache_size_tokens",
        block_tokens="block_size",
        blocks="num_gpu_blocks",
    ),
    # Without a label of model or engine. In 0.32.0 both labels name every adapter in flight.
    # Source: vllm/v1/metrics/loggers.py, and LoRARequestStates of stats.py there.
    adapters=AdapterLabels(
        metric="vllm:lora_requests_info",
        running="running_lora_adapters",
        waiting="waiting_lora_adapters",
        slots="max_lora",
    ),
    # Source: vllm/engine/arg_utils.py; both need a restart. Defaults depend on the card, so the
    # limit of an absent flag is unknown. FlexibleArgumentParser reads _ in a flag as -.
    knobs=(
        Knob(field="max_num_seqs", flag="--max-num-seqs"),
        Knob(field="max_num_batched_tokens", flag="--max-num-batched-tokens", human_readable=True),
    ),
    # Over all data-parallel ranks of a server; refuses with 503 (vllm/entrypoints/launcher.py).
    queue_knob=Knob(field="max_num_queued_reqs", flag="--max-num-queued-reqs"),
    underscores_in_flags=True,
    starts=("vllm serve", "vllm.entrypoints", "dynamo.vllm"),
    hosts=("dynamo.vllm",),
    starts_in_image=starts_vllm,
    # Source: vllm/engine/arg_utils.py and vllm/entrypoints/cli/serve.py of 0.32.0. If no number is
    # given, there is one API server for each data-parallel engine that it balances over.
    launch=LaunchFlags(
        throughput_mode=("--performance-mode", "throughput"),
        chunked_prefill="--enable-chunked-prefill",
        no_chunked_prefill="--no-enable-chunked-prefill",
        max_model_len="--max-model-len",
        server_counts=("--api-server-count", "--data-parallel-size"),
        config=CONFIG_FLAG,
        # Of Dynamo's worker.
        other_files=("--extra-engine-args",),
        metrics_off=("--disable-log-stats", ""),
        short_names=(
            ("-asc", "--api-server-count"),
            ("-dp", "--data-parallel-size"),
            ("-dpl", "--data-parallel-size-local"),
            ("-dpn", "--data-parallel-rank"),
            ("-dpr", "--data-parallel-start-rank"),
            ("-dpe", "--data-parallel-external-lb"),
            ("-dph", "--data-parallel-hybrid-lb"),
            ("-dpm", "--data-parallel-multi-port-external-lb"),
            ("-n", "--nnodes"),
            ("-r", "--node-rank"),
        ),
        local_count="--data-parallel-size-local",
        external=(
            "--data-parallel-external-lb",
            "--data-parallel-rank",
            "--data-parallel-multi-port-external-lb",
        ),
        hybrid=("--data-parallel-hybrid-lb", "--data-parallel-start-rank"),
        headless="--headless",
        nodes="--nnodes",
        rank="--node-rank",
        rank_marks=("--headless", "--data-parallel-start-rank", "--data-parallel-rank"),
        single_server="--enable-elastic-ep",
    ),
    # Source: vllm/entrypoints/serve/dev/sleep/api_router.py: with VLLM_SERVER_DEV_MODE=1 and
    # --enable-sleep-mode. Level 1 keeps the weights in the memory of the host; `wait` lets requests
    # end. /health answers 200 meanwhile, and a request waits until the engine is woken.
    sleep_api=SleepApi(sleep="/sleep?level=1&mode=wait", wake="/wake_up"),
    default_limits=default_limits,
    doubts=doubts,
    other_defaults=other_defaults,
    # Defaults of a CPU, of cards by memory, and of the mode that doubles them.
    usual_sequences=(128, 256, 512, 1024, 2048),
    usual_batched_tokens=(2048, 4096, 8192, 16384, 32768),
)
