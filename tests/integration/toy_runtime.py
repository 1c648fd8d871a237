"""A runtime that does not exist: what a further one takes, one file and one row."""

from servingslo.runtimes.profile import (
    Knob,
    MetricKind,
    RuntimeProfile,
    counter,
    gauge,
    histogram,
)

TOY = RuntimeProfile(
    name="toy",
    engine_label="worker",
    part_labels=("model",),
    metrics=(
        gauge("running", "toy_busy"),
        gauge("waiting", "toy_queued"),
        gauge("kv_usage_ratio", "toy_memory_used_ratio"),
        gauge("kv_capacity_tokens", "toy_memory_tokens"),
        counter("prompt_tokens_total", "toy_tokens_total", by_labels=("kind",), only=("in",)),
        counter("generation_tokens_total", "toy_tokens_total", by_labels=("kind",), only=("out",)),
        counter("finished_total", "toy_done_total", by_labels=("how",)),
        histogram("ttft_seconds", "toy_first_token_seconds"),
        histogram("inter_token_seconds", "toy_token_gap_seconds"),
        histogram("latency_seconds", "toy_request_seconds"),
        histogram("prompt_tokens", "toy_tokens_in"),
        histogram("output_tokens", "toy_tokens_out"),
    ),
    age_fields=(
        (MetricKind.GAUGE, "running"),
        (MetricKind.COUNTER, "finished_total"),
        (MetricKind.HISTOGRAM, "ttft_seconds"),
    ),
    capacity=None,
    knobs=(
        Knob(field="max_num_seqs", flag="--places"),
        Knob(field="max_num_batched_tokens", flag="--step-tokens"),
    ),
    underscores_in_flags=False,
)
