"""Raw measurements: one snapshot of the pods of a workload and of their engines.

Raw on purpose: counters are cumulative as the engine exports them, histograms are cumulative
buckets, and the reader decides nothing. None means unknown, never zero. An age is the time since
the newest sample of its group was taken, in seconds, computed by Prometheus itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from servingslo.records import record
from servingslo.runtimes.gateways import CountedWhen

# Separates an engine's own name from the server of its pod.
_SERVER_SEPARATOR = "@"
_PORT_OF_SERVER = re.compile(r"@:[0-9]{1,5}$")


def engine_of_server(engine: str, server: str) -> str:
    """Return the name of an engine whose pod has another of the same name.

    server: ':8000', or a name.
    """
    return f"{engine}{_SERVER_SEPARATOR}{server}"


def model_of_engine(engine: str) -> str:
    """Return the model name in an engine's name, without the server of its pod."""
    return _PORT_OF_SERVER.sub("", engine)


@record(frozen=True, slots=True, kw_only=True)
class HistogramSample:
    """A cumulative histogram.

    upper_bounds: bucket edges in increasing order, the last may be infinite.
    cumulative_counts: observations at or below each edge, of the same length.
    sum: of the observed values, in their own unit. count: of observations.
    """

    # JSON has no infinity: stored samples hold the last edge as a string.
    __pydantic_config__: ClassVar[dict[str, str]] = {"ser_json_inf_nan": "strings"}

    upper_bounds: tuple[float, ...]
    cumulative_counts: tuple[float, ...]
    sum: float
    count: float

    def __post_init__(self) -> None:
        """Raises: ValueError if edges and counts do not fit."""
        if len(self.upper_bounds) != len(self.cumulative_counts):
            raise ValueError("as many cumulative_counts as upper_bounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """One engine in a pod (a data-parallel pod holds several).

    runtime: the runtime whose metric names it exports; None if it was not read from metrics.
    finished_total: completed requests by reason ('stop', 'length', 'abort', ...). aborted_total,
    failed_total: of engines that count them apart.
    cached_prompt_tokens_total: prompt tokens served by the prefix cache.
    accepted_draft_tokens_total: generated tokens that a draft had guessed; None without speculative
    decoding.
    executions_total: batches that ran; request_seconds_total, queued_seconds_total: summed over the
    requests that ended, of servers of dynamic batches. latency_quantiles, queue_quantiles: seconds
    by share ('0.95'), of servers that export summaries.
    max_num_seqs, max_num_batched_tokens: limits on the container's command line; None if absent
    there, see `batch_limits.resolve` for those in force.
    num_seqs_in_force, batched_tokens_in_force: the same limits as the engine exports them; 0 or
    None if it does not.
    nan_metrics: names of metrics that Prometheus answered as NaN or Inf; their field is None.
    impossible_metrics: values that no engine can have, as name=value; their field is None as well.
    sumless_metrics: histograms whose buckets are exported without their sum; their field is None.
    sleep_states: 1 or 0 by state, of engines that can be put to sleep and stay Ready.
    adapters: names of the adapters (LoRA) of requests in flight. adapter_slots: most of them in one
    batch; None if not exported. tokens_by_model: generated tokens by model name, of engines that
    serve several; empty for one.
    """

    engine: str
    runtime: str | None = None
    gauges_age_seconds: float | None = None
    counters_age_seconds: float | None = None
    histograms_age_seconds: float | None = None

    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_usage_ratio: float | None = None
    kv_capacity_tokens: float | None = None
    kv_block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_seqs_in_force: float | None = None
    batched_tokens_in_force: float | None = None

    prompt_tokens_total: float | None = None
    cached_prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    accepted_draft_tokens_total: float | None = None
    finished_total: Mapping[str, float] = field(default_factory=dict)
    preempted_total: float | None = None
    rejected_total: float | None = None
    aborted_total: float | None = None
    failed_total: float | None = None
    executions_total: float | None = None
    request_seconds_total: float | None = None
    queued_seconds_total: float | None = None
    latency_quantiles: Mapping[str, float] = field(default_factory=dict)
    queue_quantiles: Mapping[str, float] = field(default_factory=dict)

    ttft_seconds: HistogramSample | None = None
    inter_token_seconds: HistogramSample | None = None
    time_per_output_token_seconds: HistogramSample | None = None
    latency_seconds: HistogramSample | None = None
    queue_seconds: HistogramSample | None = None
    prompt_tokens: HistogramSample | None = None
    output_tokens: HistogramSample | None = None
    iteration_tokens: HistogramSample | None = None
    transfer_seconds: HistogramSample | None = None
    prefill_seconds: HistogramSample | None = None
    decode_seconds: HistogramSample | None = None

    adapters: tuple[str, ...] = ()
    adapter_slots: int | None = None
    tokens_by_model: Mapping[str, float] = field(default_factory=dict)

    sleep_states: Mapping[str, float] = field(default_factory=dict)

    nan_metrics: tuple[str, ...] = ()
    impossible_metrics: tuple[str, ...] = ()
    sumless_metrics: tuple[str, ...] = ()

    @property
    def asleep(self) -> bool:
        """Whether it serves nothing until it is woken: its weights or its cache left the card.

        Source: record_sleep_state of vllm/v1/metrics/loggers.py: a paused engine has no state but
        `awake` = 0.
        """
        awake = self.sleep_states.get("awake")
        return any(self.sleep_states.values()) if awake is None else not awake


@record(frozen=True, slots=True, kw_only=True)
class GPUSample:
    """One GPU of a pod, from DCGM.

    product: such as 'NVIDIA L4'. xid_error: last XID error code, 0 when there was none.
    """

    gpu: str
    product: str | None = None
    age_seconds: float | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_free_bytes: float | None = None
    power_watts: float | None = None
    xid_error: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """Engine settings on the container's command line, besides the limits; None: not given.

    flags: fields of the limits that the command line gives as a number, not through a variable or a
    file. accelerator: whether the container asks for a device of any kind; part_of_card: for a
    slice or share of one. throughput_mode: limits that are not given are doubled. api_server_count:
    processes in front of the engines, each of which counts an engine's steps by itself; 0 if the
    pod has none. node: why the pod is only one node of an engine; '' if it is not. unread: which
    part of it could not be read, and why; '' for none. unread_limits: fields of limits that are
    given but could not be read: no default replaces them.
    """

    flags: tuple[str, ...] = ()
    accelerator: bool | None = None
    part_of_card: bool = False
    throughput_mode: bool = False
    chunked_prefill: bool | None = None
    max_model_len: int | None = None
    api_server_count: int | None = None
    node: str = ""
    unread: str = ""
    unread_limits: tuple[str, ...] = ()


@record(frozen=True, slots=True, kw_only=True)
class PodSample:
    """One pod of the workload.

    template_hash: of the pod template that made it (pod-template-hash or revision hash).
    ready_after_seconds: time from creation to readiness, None while it never was ready.
    scheduled_after_seconds: time from creation to scheduling. started_after_seconds: to the start
    of its last container, after images were pulled. launch: None in observations that were stored
    without it. metrics_off: why its command line disables the engine's metrics; '' if it does not.
    queued_reason: what prevents its scheduling, None if nothing does. failing_reason: why its
    containers do not start or keep running, such as 'CrashLoopBackOff after exit code 1'; None if
    unknown. unready_for_seconds: time since it was last ready, or since its creation; None while it
    is ready.
    """

    name: str
    template_hash: str | None = None
    image: str | None = None
    gpu_product: str | None = None
    ready: bool = False
    deleting: bool = False
    age_seconds: float | None = None
    scheduled_after_seconds: float | None = None
    started_after_seconds: float | None = None
    ready_after_seconds: float | None = None
    ready_for_seconds: float | None = None
    restarts: int = 0
    unschedulable_reason: str | None = None
    queued_reason: str | None = None
    failing_reason: str | None = None
    unready_for_seconds: float | None = None
    engines: tuple[EngineSample, ...] = ()
    gpus: tuple[GPUSample, ...] = ()
    launch: EngineLaunch | None = None
    metrics_off: str = ""

    @property
    def is_node(self) -> bool:
        """Whether it is a node of an engine whose server runs in another pod, with that one's page.

        It has no requests of its own, so that none are missing.
        """
        if self.launch is None or self.engines:
            return False
        return self.launch.api_server_count == 0 or bool(self.launch.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayInstance:
    """Cumulative counts of one proxy or endpoint picker for the workload.

    requests_total: includes those that it refused, and each of its own retries.
    rejected_total: refused by the gateway itself. retried_total: its own retries. queued: waiting
    there now. active: passed on and not answered yet. errors_total: final answers of 5xx without
    its own refusals, timeouts included. aborted_total: ended before the end of the answer, by the
    client or by the gateway. cut_total: broken off by the server; without an answer they are also
    in errors_total. These three may fall a little: each is a difference of counters.
    latency_seconds: until the last byte of an answer.
    Of one backend that is counted apart: failed_total: answered with 5xx or 429, by the gateway or
    the backend. ended_total, ended_milliseconds_total: answers and their time.
    saturation_ratio: how full it takes the workload to be; it holds requests from 1 on.
    """

    name: str = ""
    age_seconds: float | None = None
    requests_total: float | None = None
    rejected_total: float | None = None
    retried_total: float | None = None
    queued: float | None = None
    active: float | None = None
    failed_total: float | None = None
    errors_total: float | None = None
    aborted_total: float | None = None
    cut_total: float | None = None
    latency_seconds: HistogramSample | None = None
    ended_total: float | None = None
    ended_milliseconds_total: float | None = None
    saturation_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritySample:
    """What each instance counted of the requests of one priority."""

    priority: int
    instances: tuple[GatewayInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySample:
    """The counts of a gateway in front of the workload, if one is read.

    counted: when it counts a request. instances: each with its own counters; a gateway that reports
    no instances is a single one with the counters below. Without instances and counters nothing is
    known about the workload there. priorities: of a gateway that counts by priority, lowest first.
    """

    counted: CountedWhen = CountedWhen.ARRIVED
    instances: tuple[GatewayInstance, ...] = ()
    priorities: tuple[PrioritySample, ...] = ()
    age_seconds: float | None = None
    requests_total: float | None = None
    rejected_total: float | None = None
    queued: float | None = None

    @property
    def all_instances(self) -> tuple[GatewayInstance, ...]:
        """The instances; for a gateway that reports none, itself as one."""
        if self.instances or self.requests_total is None:
            return self.instances
        return (
            GatewayInstance(
                age_seconds=self.age_seconds,
                requests_total=self.requests_total,
                rejected_total=self.rejected_total,
                queued=self.queued,
            ),
        )
