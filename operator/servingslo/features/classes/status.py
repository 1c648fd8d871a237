"""The part of the status about each class of requests, and its gauges."""

from collections.abc import Iterator

from servingslo.api.status_base import GaugeRow, GaugeValue, StatusModel, StatusPart, told
from servingslo.features.classes.decision import LANES_DECIDED, ClassReport
from servingslo.features.classes.shares import SHARES
from servingslo.policy.decision import Decision
from servingslo.policy.routes import MOST_CLASSES


def _rates(report: ClassReport) -> Iterator[GaugeValue]:
    for outcome in ("offered", "admitted", "refused"):
        yield {"class": report.name, "outcome": outcome}, getattr(report, f"{outcome}_per_second")


def _classes(decision: Decision) -> tuple[ClassReport, ...] | None:
    lanes = LANES_DECIDED.of(decision.knobs)
    return None if lanes is None else lanes.classes


class ClassStatus(StatusModel):
    """One class of requests of a resource with classes."""

    gauge_labels = (("class", "name"),)
    gauge_rows = (
        GaugeRow(
            name="servingslo_class_requests_per_second",
            help="Requests of a class at the gateway by outcome: offered = admitted + refused.",
            labels=("class", "outcome"),
            values=_rates,
        ),
    )

    name: str = told("name", "Name of the class.", default=...)
    state: str = told(
        "state",
        "Open (let in), Full (some are refused), Closed (its lane is at its least), "
        "Unbound (more is in flight than its lane allows) or Unseen (the gateway does not count "
        "it).",
        default=...,
    )
    offered_per_second: float | None = told(
        "offered_per_second", "Requests of the class at the gateway, refused ones included."
    )
    refused_per_second: float | None = told("refused_per_second", "Those that the gateway refused.")
    in_flight: float | None = told(
        "in_flight", "Passed on and not answered yet.", gauge="servingslo_class_in_flight_requests"
    )
    mean_seconds: float | None = told(
        "mean_seconds",
        "Mean time from the gateway to the answer, seconds.",
        gauge="servingslo_class_mean_seconds",
    )
    lane: int | None = told(
        "after",
        "Requests of the class that may be in flight at each proxy.",
        gauge="servingslo_class_lane_requests",
    )


PART = StatusPart(
    key=SHARES,
    model=ClassStatus,
    description="Each class of spec.classes.",
    of=_classes,
    most_classes=MOST_CLASSES,
)
