"""The structure of a runtime profile: the sources of each measured field and each batch limit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class MetricKind(StrEnum):
    """How samples of one engine that differ in other labels are combined.

    GAUGE: the maximum, because an engine has one value. COUNTER and HISTOGRAM: the sum.
    """

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """The metric names of one field of an EngineSample.

    field: of EngineSample. names: as Prometheus stores them, newest first; the first one that an
    engine exports is used. For a histogram the base name, without _bucket, _sum and _count.
    by_labels: labels that split the field into a mapping, newest first; empty for a number.
    only: the field is the sum of these parts; empty: it is the mapping of all parts. unit: of the
    exported values, in the field's unit: 1e-6 if seconds are exported as microseconds. undivided:
    those names that are the field itself, without parts.
    """

    field: str
    kind: MetricKind
    names: tuple[str, ...]
    by_labels: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    unit: float = 1.0
    undivided: tuple[str, ...] = ()

    def is_split(self, name: str) -> bool:
        """Whether the field has parts when exported under this name."""
        return bool(self.by_labels) and name not in self.undivided


def gauge(
    field: str, *names: str, by_labels: tuple[str, ...] = (), unit: float = 1.0
) -> MetricNames:
    """The names of a gauge."""
    kind = MetricKind.GAUGE
    return MetricNames(field=field, kind=kind, names=names, by_labels=by_labels, unit=unit)


def counter(
    field: str,
    *names: str,
    by_labels: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    unit: float = 1.0,
    undivided: tuple[str, ...] = (),
) -> MetricNames:
    """The names of a counter. undivided: further names, tried after the others."""
    return MetricNames(
        field=field,
        kind=MetricKind.COUNTER,
        names=(*names, *undivided),
        by_labels=by_labels,
        only=only,
        unit=unit,
        undivided=undivided,
    )


def histogram(field: str, *names: str) -> MetricNames:
    """The names of a histogram."""
    return MetricNames(field=field, kind=MetricKind.HISTOGRAM, names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLabels:
    """Labels of an info metric with the size of the KV cache; their values are text.

    '' for a label that it does not have.

    tokens: the capacity itself, if the runtime exports it. block_tokens and blocks: otherwise their
    product is the capacity. It is wrong for models whose layers have different block sizes, so
    tokens comes first.
    """

    metric: str
    tokens: str
    block_tokens: str
    blocks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLabels:
    """Labels of an info metric with the adapters (LoRA) of requests in flight.

    An engine keeps a series for each former set of adapters; its value is the time of that set.
    running, waiting: names, separated by commas. slots: most adapters that one batch may hold.
    """

    metric: str
    running: str
    waiting: str
    slots: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A batch limit of an engine, and its flag.

    field: of BatchArguments. flag: its spelling; with dashes if the profile treats underscores as
    dashes. human_readable: values such as 8k (8,000) and 8K (8,192) are accepted. off: values that
    turn the limit off. when_off: the flag of the bound that applies then, and its default; never
    less than the longest sequence. divided_by: the flag of a number of ranks that share the limit.
    """

    field: str
    flag: str
    human_readable: bool = False
    off: frozenset[str] = frozenset()
    when_off: tuple[str, int] | None = None
    divided_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlags:
    """Flags that default limits and the counting of steps depend on; '' or empty: it has none.

    throughput_mode: a flag and its value that enable larger default limits. chunked_prefill,
    no_chunked_prefill: switches. max_model_len: longest sequence, tokens. config: names a YAML file
    of further flags, which is read as vLLM reads it. other_files: name files of flags that are not
    read. short_names: of flags here, each with the full one. metrics_off: a flag and its value (''
    for none) that turn its metrics off; metrics_on: a flag that it needs to have metrics.
    For the number of processes that count each step: server_counts: flags of this number and of the
    number of data-parallel engines, its default; local_count: of the engines in this pod. external,
    hybrid: flags of another balancer in front of servers with one engine, or with a pod's engines;
    headless: of no server; single_server: of one server at most. divided_by_ranks: a switch that
    divides a limit among the ranks. nodes, rank: of an engine of several pods: their number, and
    the pod's place; rank_marks: other flags of such a pod.
    """

    throughput_mode: tuple[str, str] | None = None
    chunked_prefill: str = ""
    no_chunked_prefill: str = ""
    max_model_len: str = ""
    server_counts: tuple[str, ...] = ()
    config: str = ""
    metrics_off: tuple[str, str] | None = None
    metrics_on: str = ""
    other_files: tuple[str, ...] = ()
    short_names: tuple[tuple[str, str], ...] = ()
    local_count: str = ""
    external: tuple[str, ...] = ()
    hybrid: tuple[str, ...] = ()
    headless: str = ""
    single_server: str = ""
    divided_by_ranks: str = ""
    nodes: str = ""
    rank: str = ""
    rank_marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """The inputs of an engine's default limits; None if not known.

    version: of the runtime. card, card_memory_bytes: of one of its cards.
    accelerator: whether it has one; part_of_card: a slice or share of one. throughput_mode,
    chunked_prefill, max_model_len: from its command line. max_num_seqs, max_num_batched_tokens: the
    known limit.
    """

    version: tuple[int, ...] | None = None
    card: str | None = None
    card_memory_bytes: float | None = None
    accelerator: bool | None = None
    part_of_card: bool = False
    throughput_mode: bool = False
    chunked_prefill: bool | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultLimits:
    """Batch limits of an engine without limits in its command line."""

    max_num_seqs: int
    max_num_batched_tokens: int


# Age fields of engines that generate tokens, one for each kind.
TOKEN_AGE_FIELDS = (
    (MetricKind.GAUGE, "running"),
    (MetricKind.COUNTER, "generation_tokens_total"),
    (MetricKind.HISTOGRAM, "ttft_seconds"),
)
# The same of engines that answer without tokens: they embed, rank or classify.
ANSWER_AGE_FIELDS = (
    (MetricKind.GAUGE, "running"),
    (MetricKind.COUNTER, "finished_total"),
    (MetricKind.HISTOGRAM, "latency_seconds"),
)


class SleepApi(NamedTuple):
    """Paths that a POST puts an engine to sleep by, and wakes it by; both may be repeated."""

    sleep: str
    wake: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProfile:
    """Everything this package knows of one runtime.

    engine_label: distinguishes the engines of one pod. part_labels: split one engine's counts into
    parts that are added up, unless a field uses the split. age_fields: for each kind, the field
    whose samples have the age of all fields of that kind; engines export them on one page.
    engines_are_models: a server has an engine for each of its models. requests_have_labels: its
    administrator may have requests counted by labels that only `part_labels` can name. refused:
    metrics that no objective can use, by their name in the API, each with the reason.
    sleep_api: how its servers are put to sleep and woken over HTTP; None if they cannot be.
    model_repository_port: port of its servers' model repository API, which reads and changes limits
    while they run; None if they have none.
    hosts: modules among `starts` that parse the command line themselves. starts_in_image: whether
    an image's own start command is known to be the engine's, without flags or variables.
    queue_knob: bound on running plus waiting requests in a server, which refuses more; None: it has
    none. starts: words that start it, such as 'vllm serve'. abbreviations: its parser accepts
    prefixes of flags. launch: the other flags that are read. default_limits: the limits if none is
    given, None if not known. doubts: of a setting and an image, why other defaults may be in force.
    other_defaults: of an image and the words that start it, why these defaults do not hold.
    usual_sequences, usual_batched_tokens: the existing defaults, in increasing order; a default
    that data rule out is corrected to the next one.
    """

    name: str
    engine_label: str
    part_labels: tuple[str, ...]
    metrics: tuple[MetricNames, ...]
    capacity: CapacityLabels | None
    knobs: tuple[Knob, ...]
    underscores_in_flags: bool
    age_fields: tuple[tuple[MetricKind, str], ...] = TOKEN_AGE_FIELDS
    queue_knob: Knob | None = None
    starts: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    starts_in_image: Callable[[str | None], bool] | None = None
    abbreviations: bool = True
    launch: LaunchFlags = LaunchFlags()
    default_limits: Callable[[EngineSetting], DefaultLimits] | None = None
    doubts: Callable[[EngineSetting, str | None], Iterable[str]] | None = None
    other_defaults: Callable[[str | None, Sequence[str]], str] | None = None
    usual_sequences: tuple[int, ...] = ()
    usual_batched_tokens: tuple[int, ...] = ()
    engines_are_models: bool = False
    requests_have_labels: bool = False
    refused: tuple[tuple[str, str], ...] = ()
    model_repository_port: int | None = None
    sleep_api: SleepApi | None = None
    adapters: AdapterLabels | None = None

    @property
    def has_tokens(self) -> bool:
        """Whether there is a time between the tokens of its answers; else each comes whole."""
        return "tpot" not in dict(self.refused)

    @property
    def metric_names(self) -> frozenset[str]:
        """Every name that its engines may export; for histograms the base names."""
        names = {name for metric in self.metrics for name in metric.names}
        if self.adapters is not None:
            names.add(self.adapters.metric)
        return frozenset(names if self.capacity is None else {*names, self.capacity.metric})

    @property
    def capacity_in_blocks(self) -> bool:
        """Whether it exports kv_capacity_tokens as blocks of kv_block_tokens each."""
        return any(metric.field == "kv_block_tokens" for metric in self.metrics)

    def of_kind(self, kind: MetricKind) -> tuple[MetricNames, ...]:
        """The metrics of one kind, in the profile's order."""
        return tuple(metric for metric in self.metrics if metric.kind is kind)

    def metric(self, field: str) -> MetricNames:
        """The names of a field. Raises: KeyError if the profile does not have the field."""
        for metric in self.metrics:
            if metric.field == field:
                return metric
        raise KeyError(field)

    def age_names(self, kind: MetricKind) -> tuple[str, ...]:
        """Names of the metric whose samples have the age of a kind; empty if there is none."""
        field = dict(self.age_fields).get(kind)
        return () if field is None else self.metric(field).names

    def split_labels(self, kind: MetricKind) -> tuple[str, ...]:
        """All labels that split fields of a kind, without duplicates."""
        labels = (label for metric in self.of_kind(kind) for label in metric.by_labels)
        return tuple(dict.fromkeys(labels))
