"""Deltas between two scrapes of one engine: what happened, and over how many seconds.

A window lies between two scrapes, not between two ticks. Without a new scrape since the last tick
there is no window. Its length is the difference of scrape times (time − age). Only a falling
counter means a restart: it then counts from zero again.
"""

import math

from servingslo.copying import replace
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.estimation.windows import plausible
from servingslo.estimation.windows.endings import ABORTED, NOT_COUNTED, Endings, endings_between
from servingslo.estimation.windows.families import (
    exported_fields,
    generates_no_token,
    requests_served,
)
from servingslo.estimation.windows.sample_pairs import (
    count_increase,
    finished_count,
    increase,
    kv_used_tokens,
    other_parts,
    sum_increase,
    tells_the_same,
    without_histograms,
    zero_like,
)
from servingslo.estimation.windows.scrapes import (
    Scrape,
    counters_time_seconds,
    histograms_time_seconds,
    next_scrape,
    window_start,
)
from servingslo.models.engine.service_time import ServiceLaw
from servingslo.records import record

# Groups read from one scrape share a timestamp, but PromQL evaluates their ages separately.
SAME_SCRAPE_SECONDS = 0.5
# Scrapes closer than this are jitter of the reading, not a window.
SHORTEST_WINDOW_SECONDS = 0.5
# A longer gap between scrapes is an outage: its content says nothing about the present.
LONGEST_WINDOW_SECONDS = 300.0
# After the first number of impossible windows in a row, the present counts become the new start.
# After the second, the law may be that of another engine and is no longer used for this check.
# Judgement; measured by the fault rows of `tests/chaos` that cut or exchange pages.
DOUBTED_WINDOWS = 3
DOUBTED_LAW_WINDOWS = 20
# After so many windows in which no number moved, the engine hangs: its pod is unreliable.
STILL_WINDOWS = 2


@record(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The last scrapes of one engine, from which windows are measured.

    Counters and histograms may be read at different intervals, so each group keeps its own newest
    scrape. restarts: of the pod at the last tick. histograms_paired: whether the counters in
    `histograms` are of the same scrape as its histograms. doubted: impossible windows in a row;
    doubted_seconds: when the last of them was scraped. same_since_seconds: since when all numbers
    are the same although requests run, None while they move: the engine hangs, or its page is a
    cached copy. exported: fields that it exported since its container started. since_seconds: time
    of its first known scrape.
    """

    pod: str
    engine: str
    restarts: int = 0
    counters: Scrape | None = None
    histograms: Scrape | None = None
    histograms_paired: bool = False
    doubted: int = 0
    doubted_seconds: float | None = None
    same_since_seconds: float | None = None
    exported: frozenset[str] = frozenset()
    since_seconds: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class Window:
    """What one engine did between two scrapes; None if the engine does not export the number.

    restarted: counters restarted at zero inside. from_zero: first window of a new engine.
    warm: the engine had served before it; the first tokens of an engine take longer than
    its law says, because kernels are compiled and caches filled.
    paired: counters and histograms are of the same scrapes and may be compared.
    first_tokens: requests that got their first token. This and generated_tokens are None if the
    engine generates none. step_count: engine steps.
    accepted_tokens: generated tokens that a draft had guessed; None without speculative decoding.
    still: no number moved although requests ran, for the first or second time: the engine begins to
    hang, or the previous page was read once more.
    cached_tokens: prompt tokens served by the prefix cache. finished: completed requests, including
    aborted ones if the engine counts them; aborted: of these, None if it exports no reasons.
    endings: without a whole answer.
    executions: batches that ran; request_seconds, queued_seconds: summed over finished requests.
    """

    pod: str
    engine: str
    seconds: float
    restarted: bool = False
    from_zero: bool = False
    warm: bool = True
    paired: bool = True
    still: bool = False
    running_before: float | None = None
    running_after: float | None = None
    waiting_before: float | None = None
    waiting_after: float | None = None
    first_tokens: float | None = None
    ttft_sum_seconds: float | None = None
    inter_token_count: float | None = None
    inter_token_sum_seconds: float | None = None
    step_count: float | None = None
    generated_tokens: float | None = None
    accepted_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    finished: float | None = None
    aborted: float | None = None
    endings: Endings = NOT_COUNTED
    rejected: float | None = None
    executions: float | None = None
    request_seconds: float | None = None
    queued_seconds: float | None = None
    preempted: float | None = None
    kv_used_after_tokens: float | None = None


@record(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """One engine at one tick: its new memory and the windows that ended since the last tick.

    counters: between scrapes of counters and gauges. flow: between scrapes of histograms. Either is
    None without a newer scrape of its group. before, after: the samples that bound `flow`; `before`
    is None if histograms count from zero. Histograms that are read in turns give longer windows
    than counters: use counters for the present, flow for lasting properties. doubt: why no engine
    can have done this, '' if it is possible; with a doubt there is no window.
    """

    memory: EngineMemory
    counters: Window | None = None
    flow: Window | None = None
    before: EngineSample | None = None
    after: EngineSample | None = None
    doubt: str = ""

    @property
    def lasting(self) -> Window | None:
        """The window that laws and lengths are learnt from; each moment is used once."""
        return self.counters if self.memory.histograms is None else self.flow


def tokens_per_sequence_step(window: Window) -> float:
    """Return the tokens that a step generates per sequence in it: 1 plus accepted draft tokens.

    Source: vllm/v1/spec_decode/metrics.py of 0.32.0: generated tokens include the accepted ones.
    """
    generated = window.generated_tokens or 0.0
    verified = generated - (window.accepted_tokens or 0.0)
    return generated / verified if generated > verified > 0.0 else 1.0


def advance(
    memory: EngineMemory | None,
    pod: PodSample,
    sample: EngineSample,
    now_seconds: float,
    counting_for_seconds: float | None,
    law: ServiceLaw | None = None,
) -> EngineStep:
    """Return the engine's new memory and the windows that end with this sample.

    counting_for_seconds: set for an engine seen for the first time whose counters provably started
    from zero this long ago (its pod became ready while it was watched); else None. law: the trusted
    law of this engine, None without one.
    """
    before = memory or EngineMemory(pod=pod.name, engine=sample.engine, restarts=pod.restarts)
    counters_time = counters_time_seconds(sample, now_seconds)
    histograms_time = histograms_time_seconds(sample, now_seconds)
    new_counters = has_counters(sample) and _is_newer(counters_time, before, before.counters)
    new_histograms = _has_histograms(sample) and _is_newer(
        histograms_time, before, before.histograms
    )
    old = _at_window_start(before, sample, pod.restarts, counters_time)
    of_one_scrape = abs(counters_time - histograms_time) <= SAME_SCRAPE_SECONDS
    same = new_counters and old.counters is not None and tells_the_same(old.counters.sample, sample)
    # The first movement after a standstill belongs to more than the last window.
    still_since = None if same else old.same_since_seconds
    paired = new_counters and new_histograms and of_one_scrape and still_since is None
    counted = sample if of_one_scrape else without_histograms(sample)
    law = law if old.doubted < DOUBTED_LAW_WINDOWS else None
    flow = counters = None
    doubt = why = ""
    if new_histograms:
        seconds = _length(histograms_time, old.histograms, still_since, counting_for_seconds)
        paired_windows = paired and (memory is None or old.histograms_paired)
        flow, doubt = _window(pod, old.histograms, sample, seconds, law, paired=paired_windows)
    if paired and old.counters is old.histograms:
        counters = flow
    elif new_counters:
        seconds = _length(counters_time, old.counters, still_since, counting_for_seconds)
        counters, why = _window(pod, old.counters, counted, seconds, law, paired=False)
    doubt = doubt or why
    doubted = old.doubted + 1 if doubt else 0 if flow or counters else old.doubted
    if doubt and doubted % DOUBTED_WINDOWS:
        latest = max(counters_time, histograms_time)
        return EngineStep(memory=replace(old, doubted=doubted, doubted_seconds=latest), doubt=doubt)
    same_since = _same_since(old, same=same) if new_counters else old.same_since_seconds
    if same and counters is not None and same_since is not None:
        few = counters_time - same_since < (STILL_WINDOWS + 0.5) * counters.seconds
        counters = replace(counters, still=few)
    counted_at, observed_at, histograms_paired = old.counters, old.histograms, old.histograms_paired
    if new_counters:
        counted_at = _scrape(old.counters, counted, counters_time, counters, old.restarts, pod)
    if new_histograms:
        observed_at, histograms_paired = counted_at, paired
        if not (new_counters and of_one_scrape):
            observed_at = _scrape(old.histograms, sample, histograms_time, flow, old.restarts, pod)
    memory = EngineMemory(
        pod=old.pod,
        engine=old.engine,
        restarts=pod.restarts,
        counters=counted_at,
        histograms=observed_at,
        histograms_paired=histograms_paired,
        doubted=doubted,
        doubted_seconds=old.doubted_seconds,
        same_since_seconds=same_since,
        exported=old.exported,
        since_seconds=old.since_seconds,
    )
    if doubt:
        return EngineStep(memory=memory, doubt=doubt)
    since = None if flow is None or flow.restarted else old.histograms
    return EngineStep(
        memory=memory,
        counters=counters,
        flow=flow,
        before=None if since is None else since.sample,
        after=None if flow is None else sample,
    )


def lost_families(memory: EngineMemory, sample: EngineSample) -> tuple[str, ...]:
    """Families that this engine exported before and lacks now; gauges are checked elsewhere."""
    had = (
        ("counters", memory.counters is not None and not has_counters(sample)),
        ("histograms", memory.histograms is not None and not _has_histograms(sample)),
    )
    return tuple(name for name, lost in had if lost)


def has_counters(sample: EngineSample) -> bool:
    """Return whether the engine exports counters of its work."""
    return sample.generation_tokens_total is not None or bool(sample.finished_total)


def _has_histograms(sample: EngineSample) -> bool:
    return sample.ttft_seconds is not None or sample.latency_seconds is not None


def _same_since(old: EngineMemory, *, same: bool) -> float | None:
    if not same or old.counters is None:
        return None
    return old.counters.time_seconds if old.same_since_seconds is None else old.same_since_seconds


def _at_window_start(
    memory: EngineMemory, sample: EngineSample, restarts: int, counters_seconds: float
) -> EngineMemory:
    """Return the memory with the scrapes from which windows to this sample start."""
    counters = histograms = window_start(memory.counters, sample, restarts)
    if memory.histograms is not memory.counters:
        histograms = window_start(memory.histograms, sample, restarts)
    exported = exported_fields(sample)
    before = sample if memory.counters is None else memory.counters.sample
    same_kind = generates_no_token(before) is generates_no_token(sample)
    if memory.restarts == restarts and same_kind and not memory.exported <= exported:
        exported = memory.exported | exported
    since = counters_seconds if memory.since_seconds is None else memory.since_seconds
    kept = counters is memory.counters and histograms is memory.histograms
    if kept and exported == memory.exported and since == memory.since_seconds:
        return memory
    return replace(
        memory, counters=counters, histograms=histograms, exported=exported, since_seconds=since
    )


def _scrape(
    before: Scrape | None,
    sample: EngineSample,
    seconds: float,
    window: Window | None,
    restarts: int,
    pod: PodSample,
) -> Scrape:
    """The new scrape; a restart counts from the scrape that shows it, or the next tick's."""
    fell = window is not None and window.restarted
    moved = window is not None and bool(window.generated_tokens or window.finished)
    restarts = pod.restarts if fell else restarts
    return next_scrape(before, sample, seconds, restarts, fell=fell, moved=moved)


def _is_newer(time_seconds: float, memory: EngineMemory, before: Scrape | None) -> bool:
    """Whether this was scraped after the last known and the last doubted scrape of its group."""
    latest = -math.inf if before is None else before.time_seconds
    if memory.doubted_seconds is not None:
        latest = max(latest, memory.doubted_seconds)
    return time_seconds - latest >= SHORTEST_WINDOW_SECONDS


def _length(
    time_seconds: float,
    before: Scrape | None,
    still_since_seconds: float | None,
    counting_for_seconds: float | None,
) -> float | None:
    if before is None:
        return counting_for_seconds
    since = before.time_seconds
    if still_since_seconds is not None:
        since = min(since, still_since_seconds)
    seconds = time_seconds - since
    return seconds if seconds <= LONGEST_WINDOW_SECONDS else None


def _window(
    pod: PodSample,
    before: Scrape | None,
    after: EngineSample,
    seconds: float | None,
    law: ServiceLaw | None,
    *,
    paired: bool,
) -> tuple[Window | None, str]:
    """Window from a scrape to a sample, and why it is impossible; before: None is from zero.

    Only counters that fell have restarted. A restart reported by Kubernetes may be of another
    container, and may be reported before or after the scrape that shows it.
    """
    others = before is not None and other_parts(before.sample, after)
    if seconds is None or seconds <= 0 or others:
        return None, ""
    fell, why = False, ""
    if before is not None:
        started = before.restarts != pod.restarts
        fell, why = plausible.find_restart(before.sample, after, container_started=started)
    old = zero_like(after) if before is None or fell else before.sample
    window = _flow_between(
        pod, old, after, seconds, restarted=fell, from_zero=before is None, paired=paired
    )
    slots = after.num_seqs_in_force or after.max_num_seqs
    return window, why or _doubt(window, law, slots)


def _flow_between(
    pod: PodSample, old: EngineSample, after: EngineSample, seconds: float, **known: bool
) -> Window:
    """The window between these samples. known: its other fields."""
    finished = increase(finished_count(after), finished_count(old))
    first_tokens = count_increase(after.ttft_seconds, old.ttft_seconds)
    generated = increase(after.generation_tokens_total, old.generation_tokens_total)
    if generates_no_token(after):
        generated, first_tokens = None, first_tokens if finished is None else None
    return Window(
        pod=pod.name,
        engine=after.engine,
        seconds=seconds,
        **known,
        warm=old.generation_tokens_total != 0.0 or requests_served(old) > 0.0,
        running_before=old.running,
        running_after=after.running,
        waiting_before=old.waiting,
        waiting_after=after.waiting,
        first_tokens=first_tokens,
        ttft_sum_seconds=sum_increase(after.ttft_seconds, old.ttft_seconds),
        inter_token_count=count_increase(after.inter_token_seconds, old.inter_token_seconds),
        inter_token_sum_seconds=sum_increase(after.inter_token_seconds, old.inter_token_seconds),
        step_count=count_increase(after.iteration_tokens, old.iteration_tokens),
        generated_tokens=generated,
        accepted_tokens=increase(
            after.accepted_draft_tokens_total, old.accepted_draft_tokens_total
        ),
        prompt_tokens=increase(after.prompt_tokens_total, old.prompt_tokens_total),
        cached_tokens=increase(after.cached_prompt_tokens_total, old.cached_prompt_tokens_total),
        finished=finished,
        aborted=increase(after.finished_total.get(ABORTED), old.finished_total.get(ABORTED, 0.0)),
        endings=endings_between(old, after),
        rejected=increase(after.rejected_total, old.rejected_total),
        executions=increase(after.executions_total, old.executions_total),
        request_seconds=increase(after.request_seconds_total, old.request_seconds_total),
        queued_seconds=increase(after.queued_seconds_total, old.queued_seconds_total),
        preempted=increase(after.preempted_total, old.preempted_total),
        kv_used_after_tokens=kv_used_tokens(after),
    )


def _doubt(window: Window, law: ServiceLaw | None, slots: float | None) -> str:
    """Return why no engine can have done this; '' if it is possible."""
    uncached = None
    if window.prompt_tokens is not None:
        uncached = window.prompt_tokens - (window.cached_tokens or 0.0)
    increases = {
        "generation_tokens": window.generated_tokens,
        "prompt_tokens": uncached,
        "first_tokens": window.first_tokens,
        "finished": window.finished,
        "aborted": window.aborted,
        "rejected": window.rejected,
        "steps": window.step_count,
        "inter_token_seconds": window.inter_token_sum_seconds,
    }
    return plausible.impossible(
        increases,
        seconds=window.seconds,
        requests_held=(window.running_before or 0.0) + (window.waiting_before or 0.0),
        slots=slots,
        law=law,
    )
