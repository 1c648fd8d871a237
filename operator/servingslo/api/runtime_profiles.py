"""Read and check the runtimes that the administrator adds or changes.

A profile with the name of a known runtime changes the stated fields of that runtime. With another
name it is a new runtime. Its names are used in queries, so they contain only letters, digits and
underscores. A metric name belongs to one runtime, because it identifies the runtime of engines.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from servingslo.api.constraints import Between, Matching, not_allowed
from servingslo.api.patterns import RUNTIME_LENGTH, RUNTIME_LETTERS, RUNTIME_PATTERN
from servingslo.api.refusals import first_refusal
from servingslo.api.spec_base import ApiModel
from servingslo.errors import InvalidInputError
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.profile import (
    ANSWER_AGE_FIELDS,
    TOKEN_AGE_FIELDS,
    CapacityLabels,
    Knob,
    LaunchFlags,
    MetricKind,
    MetricNames,
    RuntimeProfile,
)

WHERE = "runtimes"
MAX_RUNTIMES = 16
_NAME = Matching(f"^{RUNTIME_PATTERN}$", RUNTIME_LETTERS, RUNTIME_LENGTH)
# Source: Prometheus, "Data model". Newer ones allow any character in quotes, which no engine uses.
_METRIC = Matching(r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", "letters, digits, _ and :", 200)
_LABEL = Matching(r"^[a-zA-Z_][a-zA-Z0-9_]*$", "letters, digits and _", 100)
_FLAG = Matching(r"^--[a-z0-9][-a-z0-9_]*$", "a flag such as --max-num-seqs", 100)
_MetricName = Annotated[str, _METRIC]
_Label = Annotated[str, _LABEL]
_Flag = Annotated[str, _FLAG]
_Port = Annotated[int, Between(1, 65535)]
_Unit = Annotated[float, Between(1e-9, 1e9)]
# Each field with the first metric that has it.
_FIELDS: Mapping[str, MetricNames] = MappingProxyType(
    {metric.field: metric for known in reversed(CATALOGUE) for metric in known.metrics}
)
# Without these there is no traffic and no queue; without the others no law, unless engines answer
# without tokens.
_NEEDED = ("running", "waiting", "finished_total")
_OF_TOKENS = ("prompt_tokens_total", "generation_tokens_total", "ttft_seconds")
_WITHOUT_TOKENS = "latency_seconds"
_CAPACITY = "capacity"
_SUFFIXES = ("_bucket", "_sum", "_count")


class _Metric(ApiModel):
    """Names of one metric, newest first; or a single name.

    byLabel: splits it into parts. only: the parts that are added up. unit: of the exported values,
    in seconds or tokens: 0.001 for milliseconds.
    """

    names: Annotated[tuple[_MetricName, ...], Field(min_length=1, max_length=8)]
    by_label: _Label | None = None
    only: Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=16)] = ()
    unit: _Unit = 1.0

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"names": (value,)}
        return {"names": value} if isinstance(value, list) else value

    def _stated(self) -> Mapping[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def names_of(self, field: str) -> MetricNames:
        """The field's metric names. Raises: PydanticCustomError for settings it cannot have."""
        known, stated = _FIELDS[field], self._stated()
        mapping = bool(known.by_labels) and not known.only
        path = ("metrics", to_camel(field))
        if known.kind is MetricKind.HISTOGRAM and stated.keys() != {"names"}:
            raise not_allowed("names alone, of a histogram", path=path, value=stated)
        if mapping and self.only:
            raise not_allowed("no only: every part counts", path=path, value=stated)
        if not mapping and bool(self.by_label) != bool(self.only):
            raise not_allowed("byLabel and only together", path=path, value=stated)
        labels = (self.by_label,) if self.by_label else known.by_labels if mapping else ()
        return MetricNames(
            field=field, kind=known.kind, names=self.names, by_labels=labels, only=self.only,
            unit=self.unit,
        )  # fmt: skip


class _Capacity(ApiModel):
    """Labels of an info metric with the KV cache's size in tokens, or in blocks."""

    metric: _MetricName | None = None
    tokens: _Label | None = None
    block_tokens: _Label | None = None
    blocks: _Label | None = None

    def of(self, had: CapacityLabels | None) -> CapacityLabels:
        """The stated labels, else the runtime's own. Raises: InvalidInputError if incomplete."""
        had = had or CapacityLabels(metric="", tokens="", block_tokens="", blocks="")
        found = CapacityLabels(
            metric=self.metric or had.metric,
            tokens=self.tokens or had.tokens,
            block_tokens=self.block_tokens or had.block_tokens,
            blocks=self.blocks or had.blocks,
        )
        if not found.metric or not (found.tokens or (found.block_tokens and found.blocks)):
            raise InvalidInputError(
                "capacity",
                self.model_dump(by_alias=True, exclude_unset=True),
                "metric, and the label tokens, or both of blockTokens and blocks",
            )
        return found


class _Flags(ApiModel):
    """Flags of limits; limits without a flag are neither read nor changed."""

    max_sequences: _Flag | None = None
    max_batched_tokens: _Flag | None = None
    max_queued_requests: _Flag | None = None
    max_model_length: _Flag | None = None


class AddedRuntime(ApiModel):
    """A runtime as the administrator states it."""

    engine_label: _Label | None = None
    part_labels: Annotated[tuple[_Label, ...], Field(max_length=16)] | None = None
    metrics: dict[str, _Metric] = Field(default_factory=dict)
    capacity: _Capacity | None = None
    flags: _Flags = _Flags()
    underscores_in_flags: bool | None = None
    model_repository_port: _Port | None = None

    @field_validator("metrics", mode="before")
    @classmethod
    def _fields_exist(cls, metrics: Any) -> Any:
        known = {to_camel(field) for field in _FIELDS}
        for name in metrics if isinstance(metrics, dict) else ():
            if name not in known:
                raise not_allowed(", ".join(sorted(known)), path=(str(name),), value=name)
        return metrics

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        tuple(self.found())
        flags = self.flags.model_dump(by_alias=True, exclude_none=True)
        for name, flag in flags.items() if self.underscores_in_flags else ():
            if "_" in flag:
                raise not_allowed("with - for _", path=("flags", name), value=flag)
        return self

    def found(self) -> Iterator[MetricNames]:
        """The metric names of each stated field."""
        for field in _FIELDS:
            metric = self.metrics.get(to_camel(field))
            if metric is not None:
                yield metric.names_of(field)


_ADDED = TypeAdapter(
    Annotated[dict[Annotated[str, _NAME], AddedRuntime], Field(max_length=MAX_RUNTIMES)]
)


def runtimes_of(document: object) -> tuple[RuntimeProfile, ...]:
    """The profiles that the administrator's document adds or changes.

    Raises: InvalidInputError naming the field, its value and the allowed values.
    """
    try:
        stated = _ADDED.validate_python(document or {})
    except ValidationError as error:
        told = first_refusal(error)
        field = f"{WHERE}.{told.field}" if told.field else WHERE
        raise InvalidInputError(field, told.value, told.allowed) from error
    known = {profile.name: profile for profile in CATALOGUE}
    added = {
        name: _changed(known[name], one) if name in known else _new(name, one)
        for name, one in stated.items()
    }
    _check_names(known | added)
    return tuple(added.values())


def _changed(profile: RuntimeProfile, stated: AddedRuntime) -> RuntimeProfile:
    """A known runtime, with the stated values instead of its own."""
    found = {metric.field: metric for metric in stated.found()}
    had_metrics = {metric.field: metric for metric in profile.metrics}
    more = [field for field in found if field not in had_metrics]
    if profile.engines_are_models and more:
        allowed = ", ".join(map(to_camel, had_metrics))
        raise InvalidInputError(_path(profile.name), to_camel(more[0]), allowed)
    metrics = had_metrics | found
    flags = {knob.field: knob.flag for knob in _knobs(stated)}
    had = {
        knob.field: replace(knob, flag=flags.pop(knob.field, knob.flag)) for knob in profile.knobs
    }
    knobs = had | {knob.field: knob for knob in _knobs(stated) if knob.field in flags}
    underscores = stated.underscores_in_flags
    return replace(
        profile,
        capacity=_capacity(profile.name, stated, profile.capacity),
        engine_label=stated.engine_label or profile.engine_label,
        part_labels=profile.part_labels if stated.part_labels is None else stated.part_labels,
        metrics=tuple(metrics.values()),
        knobs=tuple(knobs.values()),
        queue_knob=_queue_knob(stated) or profile.queue_knob,
        underscores_in_flags=profile.underscores_in_flags if underscores is None else underscores,
        launch=replace(
            profile.launch,
            max_model_len=stated.flags.max_model_length or profile.launch.max_model_len,
        ),
        model_repository_port=stated.model_repository_port or profile.model_repository_port,
    )


def _new(name: str, stated: AddedRuntime) -> RuntimeProfile:
    """A new runtime. Raises: InvalidInputError if something required is missing."""
    metrics = tuple(stated.found())
    fields = {metric.field for metric in metrics}
    age_fields = TOKEN_AGE_FIELDS
    if _WITHOUT_TOKENS in fields and fields.isdisjoint(_OF_TOKENS):
        age_fields = ANSWER_AGE_FIELDS
    for field in (*_NEEDED, *(_OF_TOKENS if age_fields is TOKEN_AGE_FIELDS else ())):
        if field not in fields:
            raise InvalidInputError(f"{_path(name)}.{to_camel(field)}", None, "a metric's name")
    if stated.model_repository_port is not None:
        batching = ", ".join(one.name for one in CATALOGUE if one.model_repository_port)
        port = stated.model_repository_port
        raise InvalidInputError(f"{WHERE}.{name}.modelRepositoryPort", port, f"of {batching} alone")
    return RuntimeProfile(
        name=name,
        engine_label=stated.engine_label or "engine",
        part_labels=stated.part_labels if stated.part_labels is not None else ("model_name",),
        metrics=metrics,
        age_fields=age_fields,
        capacity=_capacity(name, stated, None),
        knobs=_knobs(stated),
        queue_knob=_queue_knob(stated),
        underscores_in_flags=bool(stated.underscores_in_flags),
        launch=LaunchFlags(max_model_len=stated.flags.max_model_length or ""),
    )


def _capacity(name: str, stated: AddedRuntime, had: CapacityLabels | None) -> CapacityLabels | None:
    try:
        return had if stated.capacity is None else stated.capacity.of(had)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{WHERE}.{name}.{error.field}", error.value, error.allowed
        ) from error


def _knobs(stated: AddedRuntime) -> tuple[Knob, ...]:
    flags = stated.flags
    given = {
        "max_num_seqs": flags.max_sequences,
        "max_num_batched_tokens": flags.max_batched_tokens,
    }
    return tuple(Knob(field=field, flag=flag) for field, flag in given.items() if flag)


def _queue_knob(stated: AddedRuntime) -> Knob | None:
    flag = stated.flags.max_queued_requests
    return Knob(field="max_num_queued_reqs", flag=flag) if flag else None


def _check_names(profiles: Mapping[str, RuntimeProfile]) -> None:
    """Raises: InvalidInputError if two runtimes, or two fields of one, share a series."""
    owner: dict[str, tuple[str, MetricNames]] = {}
    for profile in profiles.values():
        for metric, series in _series_of(profile):
            name, other = owner.setdefault(series, (profile.name, metric))
            parts = metric.only and other.only and other.by_labels == metric.by_labels
            if name == profile.name and (other is metric or parts):
                continue
            whose = f"{to_camel(other.field)} of {name}"
            field = f"{_path(profile.name)}.{to_camel(metric.field)}"
            if metric.field == _CAPACITY:
                field = f"{WHERE}.{profile.name}.{_CAPACITY}.metric"
            raise InvalidInputError(field, series, f"a name that is not that of {whose}")


def _series_of(profile: RuntimeProfile) -> Iterator[tuple[MetricNames, str]]:
    for metric in profile.metrics:
        suffixes = _SUFFIXES if metric.kind is MetricKind.HISTOGRAM else ("",)
        yield from ((metric, name + suffix) for name in metric.names for suffix in suffixes)
    if profile.capacity is not None:
        name = profile.capacity.metric
        yield MetricNames(field=_CAPACITY, kind=MetricKind.GAUGE, names=(name,)), name


def _path(name: str) -> str:
    return f"{WHERE}.{name}.metrics"
