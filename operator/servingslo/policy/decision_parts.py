"""Parts of a decision in addition to the count: steps, needs, demand, model, cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from servingslo.estimation.gateway.ledger import RequestLedger
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.models.fleet.latency import Objective
from servingslo.policy.inputs import Actuation
from servingslo.reasons import Constraint, Reason

StepValue = float | int | str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionStep:
    """One stage that looked at a knob: its value before and after, the reason, the numbers."""

    stage: str
    knob: str
    before: StepValue
    after: StepValue
    reason: Reason
    inputs: Mapping[str, StepValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintNeed:
    """Replicas that one constraint alone needs; None if no examined count is enough.

    least_feasible: the least value of the objective that could be met, if no count ever meets it.
    more_than: the greatest examined count, if a greater one would be enough. objective: of the
    constraint; None if it belongs to no objective.
    """

    constraint: Constraint
    replicas: int | None
    least_feasible: float | None = None
    more_than: int | None = None
    objective: Objective | None = None

    @property
    def infeasible(self) -> bool:
        """Whether no count at all is enough: such a need does not affect sizing."""
        return self.replicas is None and self.more_than is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveReport:
    """One objective with its prediction (at the decided count) and its observation.

    observed_seconds: the percentile over the recent window, interpolated in its bucket;
    least_seconds: what it is at least. calibration_ratio: learnt ratio of observed to predicted,
    already applied to the prediction; None before a comparison. share_low_ratio, share_high_ratio:
    requests within the threshold, an interval because the threshold may lie between two bucket
    edges; None without traffic or if not observed. missing: why it cannot be observed, by its
    series, though requests were served; '' if it can. unobserved: requests arrive, but none was
    observed yet.
    """

    metric: str
    percentile: float
    threshold_seconds: float
    predicted_seconds: float | None = None
    calibration_ratio: float | None = None
    observed_seconds: float | None = None
    least_seconds: float | None = None
    share_low_ratio: float | None = None
    share_high_ratio: float | None = None
    missing: str = ""
    unobserved: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLatency:
    """A percentile of a latency metric, predicted by the model.

    seconds: corrected by observations; None if the count has no steady state.
    """

    metric: str
    percentile: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCount:
    """The predicted outcome of a replica count.

    meets_objectives: whether it meets everything planned for: every objective, utilization, KV
    cache, backlog and saturation, with the tolerated failures and without the pods left out; None
    if unknown. greatest_rate_per_second: the greatest arrival rate at which the count meets every
    constraint while no replica fails. It and latencies are filled in only for a report, see
    `report.with_latencies`.
    """

    replicas: int
    utilization_ratio: float | None
    kv_usage_ratio: float | None
    meets_objectives: bool | None
    latencies: tuple[PredictedLatency, ...] = ()
    greatest_rate_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReport:
    """Measured demand, and expected demand when capacity ordered now would be ready.

    planned_probability: of the forecast's quantile that is planned for, within (0, 1).
    aborted_ratio: share of ended requests that their clients aborted. scrape_dispersion: index of
    dispersion of arrivals from scrape to scrape, 1 for Poisson; None before enough data. ledger:
    counts of the requests of the last windows by outcome.
    """

    arrival_rate_per_second: float | None = None
    forecast_rate_per_second: float | None = None
    planned_probability: float | None = None
    lead_seconds: float | None = None
    backlog_requests: float | None = None
    running_requests: float | None = None
    waiting_requests: float | None = None
    prompt_tokens_mean: float | None = None
    output_tokens_mean: float | None = None
    cached_ratio: float | None = None
    kv_usage_ratio: float | None = None
    aborted_ratio: float | None = None
    scrape_dispersion: float | None = None
    ledger: RequestLedger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseReport:
    """The attained and the declared share of requests.

    attained_ratio, attained_most_ratio: over the last period_seconds, as far as observed
    (observed_seconds), at least and at most; None before the first request.
    """

    attained_ratio: float | None
    target_ratio: float
    period_seconds: float
    observed_seconds: float
    attained_most_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveReport:
    """The rule of scaling that the last day's arrivals ask for.

    It orders for the greatest rate of window_seconds (0: the rate extrapolated over the lead) times
    margin_ratio, and never fewer than floor_replicas. Lived over that day, it would have missed
    missed_ratio of the requests at mean_replicas; the next cheaper one the other two.
    """

    window_seconds: float
    margin_ratio: float
    floor_replicas: int
    missed_ratio: float
    mean_replicas: float
    cheaper_missed_ratio: float
    cheaper_mean_replicas: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartReport:
    """How long a replica takes from its order to readiness, and the source of that value.

    source: 'stated' (spec.coldStart), 'measured' (sample_count starts) or 'prior' (no start
    observed yet). scheduling, image, loading: the measured parts, None if not observed.
    """

    seconds: float
    source: str
    sample_count: int = 0
    scheduling_seconds: float | None = None
    image_seconds: float | None = None
    loading_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """The service law that the plan used, its error, and whether it was trusted.

    relative_error: largest deviation of observed from predicted percentiles of the objectives,
    learnt slowly and within bounds; None before a comparison. fit_error: mean error of the law's
    predictions of a window's busy time, out of sample.
    """

    trusted: bool
    reason: Reason
    source: str
    law: ServiceLaw | None = None
    relative_error: float | None = None
    fit_error: float | None = None
    sample_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsUse:
    """Batch limits of an engine that the plan uses; None if they are not known.

    Sources: 'stated' (spec.engine), 'exported' (the engine's gauges), 'args' (the container's
    command line), 'learnt' (from running, waiting and tokens per step), 'default' (of the engine's
    version and card). unread: parts of the command line that could not be read, and why; '' for
    none.
    """

    max_num_seqs: int | None = None
    max_num_seqs_source: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_batched_tokens_source: str | None = None
    unread: str = ""

    @property
    def sources(self) -> str | None:
        """Both sources in one word if they are equal, else like 'args,default'."""
        both = (self.max_num_seqs_source, self.max_num_batched_tokens_source)
        known = dict.fromkeys(source for source in both if source is not None)
        return ",".join(known) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """The cost of the decided count, in the currency of the price.

    per_million_output_tokens, per_million_tokens: at the present demand, of generated tokens alone
    and of prompt and generated tokens; None without traffic. saved_per_hour: by the better plan.
    """

    currency: str
    per_hour: float
    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None
    saved_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """Counts as observed when the decision was made.

    partly_asleep: those of the excluded pods that have an engine awake.
    """

    current: int | None
    ready: int
    pending: int
    excluded: int = 0
    partly_asleep: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The count that another client carries out.

    reason: HANDED_OVER; NOBODY_SCALES if no autoscaler is on the target; SCALER_NOT_SERVED if KEDA
    cannot ask for it; or REPORTED_ONLY. replicas: the count that others receive; None if nothing is
    known, or if no client is to receive it. detail: which client scales the target.
    """

    actuation: Actuation
    reason: Reason
    replicas: int | None = None
    detail: str = ""


class RuntimeSource(StrEnum):
    """How the runtime is known: stated by the resource, or recognized by exported metrics."""

    STATED = "stated"
    RECOGNIZED = "recognized"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeUse:
    """The runtime whose metrics are read from the engines, and its source; None if unknown."""

    name: str | None = None
    source: RuntimeSource | None = None
