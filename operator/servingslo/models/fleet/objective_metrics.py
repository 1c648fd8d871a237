"""All properties of each objective metric, one row per metric."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from servingslo.models.fleet.load_laws import (
    EngineLaws,
    LoadLaws,
    RequestLaw,
    evaluate_latency,
    evaluate_tpot,
    evaluate_ttft,
)
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import LatencyMetric
from servingslo.reasons import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveMetric:
    """One metric.

    metric: its name in the API. about: the same in words. constraint: the constraint named if an
    objective of it needs more replicas. histogram: the field of an EngineSample that observes it.
    percentile_seconds: the predicted percentile, in percent. evaluate: its law under many loads at
    once, None if a percentile needs no law. waits: the wait for a slot is a part of it.
    only_waits: it is nothing else. along_path: a request that passes a prefill and a decode pool
    collects it in both. always_told: it is reported for every count, whatever the objectives are
    about.
    """

    metric: LatencyMetric
    about: str
    constraint: Constraint
    histogram: str
    percentile_seconds: Callable[[Prediction, float], float]
    evaluate: Callable[[EngineLaws, Sequence[LoadLaws]], Sequence[RequestLaw]] | None = None
    waits: bool = True
    only_waits: bool = False
    along_path: bool = True
    always_told: bool = True


ROWS: tuple[ObjectiveMetric, ...] = (
    ObjectiveMetric(
        metric=LatencyMetric.TTFT,
        about="the time to first token",
        constraint=Constraint.TTFT,
        histogram="ttft_seconds",
        percentile_seconds=lambda load, percentile: load.ttft_seconds(percentile),
        evaluate=evaluate_ttft,
    ),
    ObjectiveMetric(
        metric=LatencyMetric.TPOT,
        about="the time per output token",
        constraint=Constraint.TPOT,
        histogram="time_per_output_token_seconds",
        percentile_seconds=lambda load, percentile: load.tpot_seconds(percentile),
        evaluate=evaluate_tpot,
        waits=False,
        along_path=False,
    ),
    ObjectiveMetric(
        metric=LatencyMetric.LATENCY,
        about="the end-to-end latency",
        constraint=Constraint.LATENCY,
        histogram="latency_seconds",
        percentile_seconds=lambda load, percentile: load.latency_seconds(percentile),
        evaluate=evaluate_latency,
        always_told=False,
    ),
    ObjectiveMetric(
        metric=LatencyMetric.QUEUE_TIME,
        about="the queue time",
        constraint=Constraint.QUEUE_TIME,
        histogram="queue_seconds",
        percentile_seconds=lambda load, percentile: load.queue_seconds(percentile),
        only_waits=True,
    ),
)
ROW_OF = {row.metric: row for row in ROWS}
ROW_OF_CONSTRAINT = {row.constraint: row for row in ROWS}


def metric_seconds(prediction: Prediction, metric: LatencyMetric, percentile: float) -> float:
    """Return the predicted percentile of a metric, in seconds."""
    return ROW_OF[metric].percentile_seconds(prediction, percentile)


def prepare(predictions: Iterable[Prediction], metric: LatencyMetric) -> None:
    """Evaluate the law of a metric for all of these predictions of one model at once.

    Each result equals a separate evaluation, up to rounding, but together they are faster. Unstable
    predictions, and the wait for a slot, have nothing to evaluate.
    """
    stable = [one for one in predictions if one.laws is not None]
    evaluate = ROW_OF[metric].evaluate
    if stable and evaluate is not None:
        evaluate(stable[0].engine, [one.laws for one in stable if one.laws is not None])
