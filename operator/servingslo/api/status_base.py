"""What all parts of the status share: immutable, camelCase names, finite numbers, their source."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

from servingslo.api.constraints import keyed_by
from servingslo.plugins import Aspect, Key

PRESERVE_UNKNOWN = {"x-kubernetes-preserve-unknown-fields": True}
_SIGNIFICANT_DIGITS = 3
MAX_REASON_LENGTH = 1024

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def rounded(value: float | None) -> float | None:
    """Three significant digits, so that noise is not written; None for no finite number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")


@dataclass(frozen=True)
class _Source:
    """Path of an attribute of what is reported ('' is the whole), or a function of it."""

    of: str | Callable[[Any], object]
    exact: bool
    gauge: str

    def value(self, report: object) -> Any:
        """The value in this report; None if it, or what holds it, is unknown."""
        return value_of(report, self.of)


def value_of(report: object, of: str | Callable[[Any], object]) -> Any:
    """What a path of attributes, or a function, finds; None if it, or what holds it, is unknown."""
    if callable(of):
        return of(report)
    value = report
    for name in filter(None, of.split(".")):
        value = None if value is None else getattr(value, name)
    return value


def told(
    source: str | Callable[[Any], object],
    description: str,
    *,
    exact: bool = False,
    gauge: str = "",
    default: object = None,
    **more: Any,
) -> Any:
    """A field of the status: where its value comes from, and what it means.

    source: path of an attribute of the report that `StatusModel.of` is given, '' for the report
    itself, or a function of it. exact: not rounded. gauge: that shows the same number, not rounded.
    default: of a status that lacks it.
    """
    field = Field(default, description=description, **more)
    field.metadata.append(_Source(source, exact, gauge))
    return field


GaugeValue = tuple[Mapping[str, str], float | None]


class GaugeFamily(NamedTuple):
    """A gauge that decisions fill. labels: in addition to namespace and name."""

    name: str
    help: str
    labels: tuple[str, ...]


class MetricSample(NamedTuple):
    """One gauge sample. labels: in addition to namespace and name, which every sample has."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, kw_only=True)
class GaugeRow:
    """A gauge whose numbers are in no field of the status of their own.

    values: labels and number of each sample of a report; None is no sample.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: Callable[[Any], Iterable[GaugeValue]]

    @property
    def family(self) -> GaugeFamily:
        """Its name, help and labels."""
        return GaugeFamily(self.name, self.help, self.labels)

    def samples(self, report: object) -> Iterator[MetricSample]:
        """The samples of a report; an unknown value has none."""
        for labels, number in self.values(report):
            if number is not None:
                yield MetricSample(self.name, labels, float(number))


class StatusModel(BaseModel):
    """A part of the status, built by snake_case names, written in camelCase."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )
    # Label of this part's gauges, and the attribute of the report that it is.
    gauge_labels: ClassVar[tuple[tuple[str, str], ...]] = ()
    gauge_rows: ClassVar[tuple[GaugeRow, ...]] = ()

    @classmethod
    def of(cls, report: object, **others: object) -> Self:
        """What this part says of a report; unknown values are absent.

        others: the fields that no report tells, by name.
        """
        found = {name: _value(report, source, part) for name, source, part in _told(cls)} | others
        return cls.model_validate(
            {name: value for name, value in found.items() if value is not None}
        )

    @classmethod
    def told_names(cls) -> tuple[str, ...]:
        """The told fields as they are written."""
        return tuple(to_camel(name) for name, _, _ in _told(cls))


@dataclass(frozen=True, kw_only=True)
class StatusPart:
    """What a feature adds to the status: a field of the key's name.

    of: what it is made of, in a decision; by default what the feature reports. description: of the
    field. most_classes: how many classes of requests it lists, each with the model; 0 if it is no
    list of them. of_class: what it adds to each class. columns: that `kubectl get -o wide` shows.
    decided: whether it is written with each decision.
    """

    key: Key[Any]
    model: type[StatusModel]
    description: str
    of_class: type[StatusModel] = StatusModel
    columns: tuple[tuple[str, str, str, str], ...] = ()
    of: Callable[[Any], object] | None = None
    most_classes: int = 0
    decided: bool = True

    @property
    def field(self) -> str:
        """The name of the field in manifests."""
        return to_camel(self.key.name)


STATUS: Aspect[StatusPart] = Aspect("status")
Model = TypeVar("Model", bound=StatusModel)


def with_features(model: type[Model]) -> type[Model]:
    """The model with a field of each feature at its end, filled from `features` of a decision."""
    fields = {part.key.name: _field_of(part) for part in STATUS.parts()}
    return create_model(model.__name__, __base__=model, **fields)


def _field_of(part: StatusPart) -> Any:
    source = part.of or partial(_reported, part.key)
    if not part.decided:
        return part.model | None, Field(None, description=part.description)
    if not part.most_classes:
        return part.model | None, told(source, part.description)
    listed: dict[str, Any] = {
        "max_length": part.most_classes,
        "json_schema_extra": keyed_by("name"),
    }
    one: Any = _with_class_features(part.model)
    return tuple[one, ...] | None, told(source, part.description, **listed)


def _with_class_features(model: type[Model]) -> type[Model]:
    """The model of a class of requests with the fields of each feature at its end."""
    parts = (part.of_class.model_fields for part in STATUS.parts())
    fields: dict[str, Any] = {n: (one.annotation, one) for part in parts for n, one in part.items()}
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


def _reported(key: Key[Any], decision: Any) -> object:
    return key.of(decision.features)


class OpenStatusModel(StatusModel):
    """A part of the status with further fields of no fixed schema."""

    model_config = ConfigDict(extra="allow", json_schema_extra=dict(PRESERVE_UNKNOWN))


@cache
def _told(
    model: type[StatusModel],
) -> tuple[tuple[str, _Source, type[StatusModel] | None], ...]:
    """Name and source of each told field, and the model of its parts if it has any."""
    return tuple(
        (name, source, _part(field.annotation))
        for name, field in model.model_fields.items()
        for source in field.metadata
        if isinstance(source, _Source)
    )


def _part(annotation: Any) -> type[StatusModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, StatusModel):
        return annotation
    return next((part for one in get_args(annotation) if (part := _part(one))), None)


def _value(report: object, source: _Source, part: type[StatusModel] | None) -> object:
    value = source.value(report)
    if part is not None and value is not None:
        return tuple(map(part.of, value)) if isinstance(value, tuple) else part.of(value)
    return rounded(value) if isinstance(value, float) and not source.exact else value


def told_gauges(model: type[StatusModel]) -> Iterator[GaugeFamily]:
    """The gauges of a part and of its parts."""
    yield from (row.family for row in model.gauge_rows)
    for name, source, part in _told(model):
        if part is not None:
            yield from told_gauges(part)
        elif source.gauge:
            labels = tuple(label for label, _ in model.gauge_labels)
            yield GaugeFamily(source.gauge, str(model.model_fields[name].description), labels)


def gauge_values(model: type[StatusModel], report: object) -> Iterator[MetricSample]:
    """The samples of the gauges that a report fills."""
    for row in model.gauge_rows:
        yield from row.samples(report)
    labels = {label: _label(getattr(report, name)) for label, name in model.gauge_labels}
    for _, source, part in _told(model):
        value = source.value(report) if part is not None or source.gauge else None
        if value is None:
            continue
        if part is None:
            yield MetricSample(source.gauge, labels, float(value))
            continue
        for one in value if isinstance(value, tuple) else (value,):
            yield from gauge_values(part, one)


def _label(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
