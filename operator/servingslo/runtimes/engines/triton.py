"""Triton Inference Server with dynamic batching; each model that it serves is an engine.

Source: a tritonserver 2.51 (`lab/servingslo_lab/rig/triton.py`), and docs/user_guide/metrics.md of
triton-inference-server/server. Its counters add a batch's duration once for each request in it, not
for each execution, and no metric is split by batch size. Batch size, window, queue size and
instances are in the model's configuration and in no metric. They are read from its model repository
API if the administrator allows it, else from spec.engine.dynamicBatching.
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
        # Only if the server was started with --metrics-config summary_latencies=true.
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
        # An inference is one row of a batch: the unit of output, like tokens elsewhere.
        counter("generation_tokens_total", "nv_inference_count"),
        # It has no reason label; another metric counts failures.
        counter("finished_total", "nv_inference_request_success", by_labels=("reason",)),
        # In 2.51 it does not count refusals of a full queue: 0 after 41 of them.
        counter(
            "rejected_total",
            "nv_inference_request_failure",
            by_labels=("reason",),
            only=("REJECTED",),
        ),
        counter(
            "aborted_total",
            "nv_inference_request_failure",
            by_labels=("reason",),
            only=("CANCELED",),
        ),
        counter(
            "failed_total",
            "nv_inference_request_failure",
            by_labels=("reason",),
            only=("BACKEND", "OTHER"),
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
    engines_are_models=True,
    launch=LaunchFlags(metrics_off=("--allow-metrics", "false")),
    refused=(("ttft", _NO_TOKENS), ("tpot", _NO_TOKENS)),
    # The server's default, --http-port.
    model_repository_port=8000,
)
