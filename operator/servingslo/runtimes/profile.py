"""The shape of a runtime profile: where each measured field and each batch limit is found."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """How samples of one engine that differ in other labels are put together.

    GAUGE: the largest is taken, for an engine has one value. COUNTER and HISTOGRAM: summed.
    """

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """Where one field of an EngineSample is found.

    field: of EngineSample. names: as Prometheus stores them, newest first; the first one that an
    engine exports is used. Of a histogram the base name, without _bucket, _sum and _count.
    by_labels: labels that split the field into a mapping, newest first; empty when it is a number.
    only: the parts whose sum is the field; empty: the mapping of all of them is. unit: of what is
    exported, in the field's own: 1e-6 where seconds are exported as microseconds. undivided: those
    of the names that are the field itself, without parts.
    """

    field: str
    kind: MetricKind
    names: tuple[str, ...]
    by_labels: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    unit: float = 1.0
    undivided: tuple[str, ...] = ()

    def is_split(self, name: str) -> bool:
        """Whether the field has parts where it is exported under this name."""
        return bool(self.by_labels) and name not in self.undivided


def gauge(
    field: str, *names: str, by_labels: tuple[str, ...] = (), unit: float = 1.0
) -> MetricNames:
    """Where a gauge is found."""
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
    """Where a counter is found. undivided: further names, tried after the others."""
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
    """Where a histogram is found."""
    return MetricNames(field=field, kind=MetricKind.HISTOGRAM, names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLabels:
    """Labels of an info metric that tell the size of the KV cache; their values are text.

    '' for one that it does not have.

    tokens: the capacity itself, where the runtime says it. block_tokens and blocks: their product
    is the capacity otherwise; it is wrong for models whose layers share no block size, so tokens
    comes first.
    """

    metric: str
    tokens: str
    block_tokens: str
    blocks: str


class Applied(StrEnum):
    """How a limit is changed. ARGUMENTS: on the command line of new pods, which need a restart."""

    ARGUMENTS = "args"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A batch limit of an engine, and how it is given to it.

    field: of BatchArguments. flag: as it is spelt; with dashes where the profile says that
    underscores mean the same. human_readable: values such as 8k (8,000) and 8K (8,192) are
    understood. off: values that turn the limit off. when_off: the flag of the bound that holds
    then, and its default; never less than the longest sequence.
    """

    field: str
    flag: str
    applied: Applied = Applied.ARGUMENTS
    human_readable: bool = False
    off: frozenset[str] = frozenset()
    when_off: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlags:
    """Flags that default limits and the counting of steps depend on; '' or empty: it has none.

    throughput_mode: a flag and its value that ask for larger default limits. chunked_prefill,
    no_chunked_prefill: switches. max_model_len: longest sequence, tokens. config: names a YAML file
    of further flags, which is read as vLLM reads it. other_files: name files of flags that are not
    read. short_names: of flags here, each with the full one. programs: what the server is started
    by. metrics_off: a flag and its value ('' for none) that turn its metrics off; metrics_on:
    without which it has none. abbreviations: flags may be cut short, as argparse allows.
    Of how many processes count each step: server_counts: their number, and that of data-parallel
    engines, which it is else; local_count: of the engines of this pod. external, hybrid: what says
    that another balancer is in front of servers with one engine, or with those of a pod; headless:
    that there is no server; single_server: that there is one at most. divided_by_ranks: a switch by
    which each rank has its share of a limit alone.
    """

    throughput_mode: tuple[str, str] | None = None
    chunked_prefill: str = ""
    no_chunked_prefill: str = ""
    max_model_len: str = ""
    server_counts: tuple[str, ...] = ()
    config: str = ""
    programs: tuple[str, ...] = ()
    metrics_off: tuple[str, str] | None = None
    metrics_on: str = ""
    abbreviations: bool = False
    other_files: tuple[str, ...] = ()
    short_names: tuple[tuple[str, str], ...] = ()
    local_count: str = ""
    external: tuple[str, ...] = ()
    hybrid: tuple[str, ...] = ()
    headless: str = ""
    single_server: str = ""
    divided_by_ranks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """What the default limits of an engine depend on; None where it is not known.

    version: major and minor of the runtime. card, card_memory_bytes: of one of its cards.
    accelerator: whether it was given one. throughput_mode, chunked_prefill, max_model_len: as its
    command line has them. max_num_seqs, max_num_batched_tokens: the limit that is known.
    """

    version: tuple[int, int] | None = None
    card: str | None = None
    card_memory_bytes: float | None = None
    accelerator: bool | None = None
    throughput_mode: bool = False
    chunked_prefill: bool | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultLimits:
    """Batch limits of an engine whose command line gives none."""

    max_num_seqs: int
    max_num_batched_tokens: int


# Of engines that make tokens, by field of each kind.
TOKEN_AGE_FIELDS = (
    (MetricKind.GAUGE, "running"),
    (MetricKind.COUNTER, "generation_tokens_total"),
    (MetricKind.HISTOGRAM, "ttft_seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProfile:
    """Everything this package knows of one runtime.

    engine_label: tells the engines of one pod apart. part_labels: split what one engine counts
    into parts that are added up, unless a field asks for the split. age_fields: for each kind, the
    field whose samples tell the age of all fields of that kind; engines export them on one page.
    serves_batches: its engines are models that serve dynamic batches of whole requests. refused:
    metrics that no objective can be about, by their name in the API, each with why.
    model_repository_port: where its servers answer the model repository API, by which limits are
    read and changed while they run; None where they have none.
    queue_knob: bounds what runs and waits in a server, beyond which it refuses; None: it has none.
    starts: words that start it, such as 'vllm serve'. abbreviations: its parser takes beginnings of
    flags. launch: what else of its command line is read. default_limits: what is in force where no
    limit is given, None where that is not known. version_decides: whether the version is not known
    and another one would have other defaults. usual_sequences, usual_batched_tokens: the defaults
    there are, in increasing order; a default that data rule out is corrected to the next one.
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
    abbreviations: bool = True
    launch: LaunchFlags = LaunchFlags()
    default_limits: Callable[[EngineSetting], DefaultLimits] | None = None
    version_decides: Callable[[EngineSetting], bool] | None = None
    usual_sequences: tuple[int, ...] = ()
    usual_batched_tokens: tuple[int, ...] = ()
    serves_batches: bool = False
    refused: tuple[tuple[str, str], ...] = ()
    model_repository_port: int | None = None

    @property
    def metric_names(self) -> frozenset[str]:
        """Every name that its engines may export, of histograms the base names."""
        names = {name for metric in self.metrics for name in metric.names}
        return frozenset(names if self.capacity is None else {*names, self.capacity.metric})

    @property
    def capacity_in_blocks(self) -> bool:
        """Whether what it exports as kv_capacity_tokens is blocks, of kv_block_tokens each."""
        return any(metric.field == "kv_block_tokens" for metric in self.metrics)

    def of_kind(self, kind: MetricKind) -> tuple[MetricNames, ...]:
        """The metrics of one kind, in the profile's order."""
        return tuple(metric for metric in self.metrics if metric.kind is kind)

    def metric(self, field: str) -> MetricNames:
        """Where a field is found. Raises: KeyError when the profile does not have the field."""
        for metric in self.metrics:
            if metric.field == field:
                return metric
        raise KeyError(field)

    def age_names(self, kind: MetricKind) -> tuple[str, ...]:
        """Names of the metric whose samples tell the age of a kind; none where it has no such."""
        field = dict(self.age_fields).get(kind)
        return () if field is None else self.metric(field).names

    def split_labels(self, kind: MetricKind) -> tuple[str, ...]:
        """All labels that split fields of a kind, each once."""
        labels = (label for metric in self.of_kind(kind) for label in metric.by_labels)
        return tuple(dict.fromkeys(labels))
