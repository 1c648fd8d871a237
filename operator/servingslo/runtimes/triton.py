"""Triton Inference Server with dynamic batching; each model that it serves is an engine.

Source: a tritonserver 2.51 (`lab/servingslo_lab/rig/triton.py`), and docs/user_guide/metrics.md of
triton-inference-server/server. Its counters add what a batch takes once for each request in it, not
for each execution, and nothing is told by batch size. Batch size, window, room and instances stand
in the model's configuration and in no metric: its model repository API tells them where the
administrator opens it, else spec.engine.dynamicBatching states them.
"""

from servingslo.runtimes.profile import LaunchFlags, MetricKind, RuntimeProfile, counter, gauge

_MICROSECONDS = 1e-6
_NO_TOKENS = "a request of Triton is answered once: there is no first token and none between"

TRITON = RuntimeProfile(
    name="triton",
    engine_label="model",
    # A model may have several versions, and instances on several cards.
    part_labels=("version", "gpu_uuid"),
    metrics=(
        gauge("waiting", "nv_inference_pending_request_count"),
        # Only where the server was started with --metrics-config summary_latencies=true.
        gauge(
            "latency_quantiles",
            "nv_inference_request_summary_us",
            by_labels=("quantile",),
            unit=_MICROSECONDS,
        ),
        gauge(
            "queue_quantiles",
            "nv_inference_queue_summary_us",
            by_labels=("quantile",),
            unit=_MICROSECONDS,
        ),
        # An inference is one row of a batch: what a model makes, as tokens are elsewhere.
        counter("generation_tokens_total", "nv_inference_count"),
        # Without a reason; the failed ones are counted by another.
        counter("finished_total", "nv_inference_request_success", by_labels=("reason",)),
        # Those of a full queue are missing from it in 2.51: 0 after 41 of them.
        counter(
            "rejected_total",
            "nv_inference_request_failure",
            by_labels=("reason",),
            only=("REJECTED",),
        ),
        counter("executions_total", "nv_inference_exec_count"),
        counter("request_seconds_total", "nv_inference_request_duration_us", unit=_MICROSECONDS),
        counter("queued_seconds_total", "nv_inference_queue_duration_us", unit=_MICROSECONDS),
    ),
    age_fields=(
        (MetricKind.GAUGE, "waiting"),
        (MetricKind.COUNTER, "finished_total"),
    ),
    capacity=None,
    knobs=(),
    underscores_in_flags=False,
    serves_batches=True,
    launch=LaunchFlags(metrics_off=("--allow-metrics", "false")),
    refused=(("ttft", _NO_TOKENS), ("tpot", _NO_TOKENS)),
    # The server's default, --http-port.
    model_repository_port=8000,
)
