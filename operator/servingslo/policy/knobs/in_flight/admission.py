"""Admission: what ready replicas can take, and how long a queue may be, recommended only.

Always from replicas that serve now, never from those that start: a bound must hold until the
capacity is there, and relaxes by itself as soon as it is.
"""

from servingslo.models.engine.admission import EngineBound, in_flight_bound, shed_ratio
from servingslo.models.fleet.full_batch import full_batch_now
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import AdmissionMode
from servingslo.policy.knobs.decisions import AdmissionDecision
from servingslo.policy.replicas.context import TickContext
from servingslo.policy.replicas.prepared_model import PreparedModel
from servingslo.policy.replicas.proposal import Requirement
from servingslo.policy.replicas.sizing import carried_rate_per_second
from servingslo.policy.rules.requirement import sizing_case
from servingslo.reasons import Reason


def admission_decision(context: TickContext, requirement: Requirement) -> AdmissionDecision:
    """Admitted rate, queue bound and share to shed at this tick.

    The queue bound of one replica is what drains within the wait budget, Q = μ·w (Little's law).
    Its bound in flight adds the running requests at the admitted rate. One share is shed for all
    replicas, max(0, 1 − admitted/arriving), or retries at the next replica amplify it. Source:
    Machine Learning Systems (V. J. Reddi), chapter "Model Serving", load shedding.
    """
    if context.targets.admission_mode is AdmissionMode.OFF:
        return AdmissionDecision(reason=Reason.ADMISSION_OFF)
    serving = len(context.serving)
    if (
        context.prepared is None
        or not context.proven
        or not serving
        or context.signals.no_metrics is not None
    ):
        return AdmissionDecision(reason=Reason.ADMISSION_UNKNOWN)
    if not context.prepared.limits.share_steps:
        return AdmissionDecision(reason=Reason.ADMISSION_UNKNOWN)
    admitted = carried_rate_per_second(
        sizing_case(context, context.prepared), requirement.infeasible, serving
    )
    engines = context.estimate.engines_per_pod
    bound = EngineBound(
        max_num_seqs=context.prepared.limits.max_num_seqs,
        max_num_batched_tokens=context.prepared.limits.max_num_batched_tokens,
        saturation_rate_per_second=context.prepared.model.saturation_rate_per_second,
        wait_budget_seconds=context.wait_budget_seconds,
        engine_count=engines,
        full_batch=_full_batch_now(context, context.prepared),
    )
    rate = admitted / (serving * engines)
    in_flight = in_flight_bound(context.prepared.model.engine.at_rate(rate).demand, rate, bound)
    # Retried requests must be shed as well.
    arriving = context.estimate.offered_rate_per_second
    shed = None if arriving is None else shed_ratio(arriving, admitted)
    return AdmissionDecision(
        reason=Reason.ADMISSION_RECOMMENDED,
        admitted_rate_per_second=admitted,
        queue_limit=bound.queue_limit,
        in_flight_limit=in_flight,
        shed_ratio=shed,
    )


def _full_batch_now(context: TickContext, prepared: PreparedModel) -> int | None:
    """The full batch at the prefill of the last scrapes: batches fill before a new mix is known."""
    sequences = prepared.frontier.full_batch(
        context.targets.objectives,
        prepared.limits.max_num_seqs,
        context.estimate.calibration.get(LatencyMetric.TPOT.value, 1.0),
    )
    if sequences is None:
        return None
    demand = prepared.model.engine.at_sequences(sequences)
    return full_batch_now(demand, sequences, context.estimate.prefill_tokens_per_token)
