"""Admission: what ready replicas can take, and how long a queue may be, recommended only.

Always from replicas that serve now, never from those on their way: a bound must hold until the
capacity is there, and relaxes by itself as soon as it is.
"""

from dataclasses import replace

from servingslo.models.admission import EngineBound, in_flight_bound, shed_ratio
from servingslo.models.full_batch import full_batch_now, full_batch_of
from servingslo.models.latency import LatencyMetric
from servingslo.policy.admission_memory import AdmissionMemory, FullBatch
from servingslo.policy.decision import AdmissionDecision
from servingslo.policy.frame import Frame
from servingslo.policy.inputs import AdmissionMode
from servingslo.policy.mix import Mix
from servingslo.policy.sizing import GreatestRate, greatest_rate
from servingslo.policy.wish import Wish, sizing_case
from servingslo.reasons import Reason

# A mix renewed at every tick is that of a workload just seen: its rate is followed this often.
LONGEST_DELAY_SECONDS = 60.0


def admission_decision(
    frame: Frame, wish: Wish
) -> tuple[AdmissionDecision, AdmissionMemory | None]:
    """Admitted rate, queue bound and share to shed at this tick, and what was computed for it.

    The queue bound of one replica is what drains within the wait budget, Q = μ·w (Little's law);
    its bound in flight adds what runs at the admitted rate.
    One share is shed for all replicas, max(0, 1 − admitted/arriving), or retries at the next
    replica amplify it.
    Source: Machine Learning Systems (V. J. Reddi), chapter "Model Serving", load shedding.
    """
    memory = frame.state.admission
    if frame.targets.admission_mode is AdmissionMode.OFF:
        return AdmissionDecision(reason=Reason.ADMISSION_OFF), memory
    serving = len(frame.serving)
    if frame.mix is None or not frame.trusted or not serving or frame.signals.blind is not None:
        return AdmissionDecision(reason=Reason.ADMISSION_UNKNOWN), memory
    if frame.mix.limits.batcher is not None:
        return AdmissionDecision(reason=Reason.ADMISSION_UNKNOWN), memory
    if memory is not None:
        memory = _compared(frame, frame.mix, memory)
    if memory is None or _due(frame, frame.mix, memory):
        recall = None if wish.candidates is None else wish.candidates.recall
        hint = None
        if memory is not None:
            hint = GreatestRate(memory.admitted_rate_per_second, memory.steepness)
        greatest = greatest_rate(
            sizing_case(frame, frame.mix), wish.infeasible, serving, hint, recall
        )
        memory = AdmissionMemory(
            serving=serving,
            mix_at_seconds=frame.mix.at_seconds,
            admitted_rate_per_second=greatest.per_second,
            steepness=greatest.steepness,
            full_batch=_full_batch(frame, frame.mix) if memory is None else memory.full_batch,
        )
    elif memory.full_batch.mix_at_seconds < memory.mix_at_seconds:
        # At another tick than the rate, so that no tick computes both.
        memory = replace(memory, full_batch=_full_batch(frame, frame.mix))
    admitted = memory.admitted_rate_per_second
    engines = frame.estimate.engines_per_pod
    bound = EngineBound(
        max_num_seqs=frame.mix.limits.max_num_seqs,
        max_num_batched_tokens=frame.mix.limits.max_num_batched_tokens,
        saturation_rate_per_second=frame.mix.model.saturation_rate_per_second,
        wait_budget_seconds=frame.wait_budget_seconds,
        engine_count=engines,
        full_batch=_full_batch_now(frame, frame.mix, memory),
    )
    in_flight = in_flight_bound(frame.mix.model.demand, admitted / (serving * engines), bound)
    # Requests that come again must be shed as well.
    arriving = frame.estimate.offered_rate_per_second
    shed = None if arriving is None else shed_ratio(arriving, admitted)
    return AdmissionDecision(
        reason=Reason.ADMISSION_RECOMMENDED,
        admitted_rate_per_second=admitted,
        queue_limit=bound.queue_limit,
        in_flight_limit=in_flight,
        shed_ratio=shed,
    ), memory


def _full_batch(frame: Frame, mix: Mix) -> FullBatch:
    """What a full batch may be with this mix."""
    return FullBatch(
        mix_at_seconds=mix.at_seconds,
        sequences=full_batch_of(
            mix.model.engine,
            frame.targets.objectives,
            mix.limits.max_num_seqs,
            frame.estimate.calibration.get(LatencyMetric.TPOT.value, 1.0),
        ),
    )


def _full_batch_now(frame: Frame, mix: Mix, memory: AdmissionMemory) -> int | None:
    """The full batch at the prefill of the last scrapes: batches fill before mixes are seen."""
    sequences = memory.full_batch.sequences
    if sequences is None:
        return None
    return full_batch_now(mix.model.demand, sequences, frame.estimate.prefill_tokens_per_token)


def _compared(frame: Frame, mix: Mix, memory: AdmissionMemory) -> AdmissionMemory:
    """The memory with its rate scaled to the replicas that serve, outdated if of other ones."""
    serving = len(frame.serving)
    if memory.serving == serving and memory.mix_at_seconds == mix.at_seconds:
        return memory
    since = memory.outdated_seconds
    return replace(
        memory,
        serving=serving,
        admitted_rate_per_second=memory.admitted_rate_per_second * serving / memory.serving,
        outdated_seconds=frame.now_seconds if since is None else since,
    )


def _due(frame: Frame, mix: Mix, memory: AdmissionMemory) -> bool:
    """Whether the admitted rate must be computed anew.

    Not at the very tick that renewed the mix, which has the new mix's tables to make as well, but
    at the next; while the mix is renewed at every tick, once a minute.
    """
    if memory.outdated_seconds is None:
        return False
    outdated_for = frame.now_seconds - memory.outdated_seconds
    return mix.at_seconds < frame.now_seconds or outdated_for >= LONGEST_DELAY_SECONDS
