"""Check whether any engine can have produced the counters of a window.

A page may be cut short, come from another pod, or be garbage, and Prometheus stores it anyway. An
impossible window is not learnt from and changes no replica count.
"""

from collections.abc import Mapping
from operator import le

from servingslo.estimation.sample import EngineSample, HistogramSample
from servingslo.models.engine.service_time import ServiceLaw

# Requests that an engine may have served since it restarted without its container: restarted by a
# supervisor, or in a container whose new start is not reported yet. The tokens are used if no
# requests are counted.
# Judgement; measured by restarts of a supervised engine between two scrapes.
FEW_REQUESTS = 100.0
FEW_TOKENS = 1e5
# Bounds of any engine: the shortest step (also the lower bound of a stated law), the most sequences
# in a step, the most tokens of one sequence in a step, speculation included.
SHORTEST_STEP_SECONDS = 1e-4
LONGEST_STEP_SECONDS = 10.0
MOST_SEQUENCES = 4096.0
MOST_TOKENS_PER_SEQUENCE = 10.0
# Most prompt tokens per second that are computed or found in a cache.
MOST_PROMPT_TOKENS_PER_SECOND = 1e8
# Full is 1. Slightly more is accepted for a moment; a value in percent is not.
LARGEST_KV_USAGE = 1.05
# Far above what engines hold at once, and above what any real counter reaches.
MOST_REQUESTS_HELD = 1e6
LARGEST_COUNT = 1e15
_MOST = {
    "running": MOST_REQUESTS_HELD,
    "waiting": MOST_REQUESTS_HELD,
    "kv_usage_ratio": LARGEST_KV_USAGE,
}
_COUNTERS = ("generation_tokens", "prompt_tokens", "first_tokens", "finished", "rejected")
# How much longer than the window an engine's own law may say that its work takes. At few sequences
# the growth of a step per sequence is known only to a factor of three.
# Judgement; measured by the largest ratio over honest windows of the recordings.
FASTER_THAN_LAW = 4.0
# A sequence occupies a slot between two of its tokens. A gap counts when it ends and may have begun
# before the window, one for each slot.
GAPS_OF_A_SLOT = 2.0
# Requests refused without a token, by a server that does nothing else.
MOST_REFUSALS_PER_SECOND = 1e5
# How many more requests may end than begin: some requests are counted in parts.
BALANCE_RATIO = 10.0
BALANCE_REQUESTS = 100.0
# Requests that a gateway may have passed on before any scrape of the engines shows them.
CROWD_REQUESTS = 1000.0


def can_be(field: str, value: float) -> bool:
    """Return whether an engine can have this value in a field of its sample."""
    return 0.0 <= value <= _MOST.get(field, LARGEST_COUNT)


def can_be_counts(histogram: HistogramSample) -> bool:
    """Whether buckets are cumulative and no number of the histogram is negative or unbounded."""
    counts = histogram.cumulative_counts
    return (
        all(map(le, (0.0, *counts), (*counts, LARGEST_COUNT)))
        and 0.0 <= histogram.sum <= LARGEST_COUNT
        and 0.0 <= histogram.count <= LARGEST_COUNT
    )


def find_restart(
    before: EngineSample, after: EngineSample, *, container_started: bool
) -> tuple[bool, str]:
    """Whether the counters restarted at zero, and why that is impossible; '' if it is possible."""
    old, new = _counters(before), _counters(after)
    falls = [
        (name, was, now)
        for name, was, now in zip(_COUNTERS, old, new, strict=True)
        if was is not None and now is not None and now < was
    ]
    if not falls:
        return False, ""
    known = {name: now for name, now in zip(_COUNTERS, new, strict=True) if now is not None}
    requests = [known[name] for name in ("first_tokens", "finished") if name in known]
    few = max(requests) <= FEW_REQUESTS if requests else max(known.values()) <= FEW_TOKENS
    if container_started or few:
        return True, ""
    name, was, now = falls[0]
    return True, f"{name} fell from {was:.6g} to {now:.6g}, and no container started"


def impossible(
    increases: Mapping[str, float | None],
    *,
    seconds: float,
    requests_held: float,
    slots: float | None,
    law: ServiceLaw | None,
) -> str:
    """Return why no engine can have done this in a window, with the numbers; '' if it is possible.

    increases: of 'generation_tokens', 'prompt_tokens' (without cached ones), 'first_tokens',
    'finished', 'aborted', 'rejected', 'steps' and 'inter_token_seconds'; None if unknown.
    requests_held: running and waiting before it. slots: sequences that can run at once, None if
    unknown. law: of this engine, None while none is trusted.
    """
    most_generated = MOST_SEQUENCES * MOST_TOKENS_PER_SEQUENCE / SHORTEST_STEP_SECONDS * seconds
    most_prompt = MOST_PROMPT_TOKENS_PER_SECOND * seconds
    if law is not None:
        busy = (
            law.step_fixed_seconds * (increases.get("steps") or 0.0)
            + law.step_per_sequence_seconds * (increases.get("generation_tokens") or 0.0)
            + law.prefill_per_token_seconds * (increases.get("prompt_tokens") or 0.0)
        )
        if busy > FASTER_THAN_LAW * seconds:
            return f"the work of {busy:.3g} s by its own law grew in {seconds:.3g} s"
    between = increases.get("inter_token_seconds") or 0.0
    if slots is not None and between > GAPS_OF_A_SLOT * slots * seconds:
        return f"{between:.4g} s between tokens in {seconds:.3g} s, with {slots:g} at once"
    bounds = {
        "generation_tokens": most_generated,
        "prompt_tokens": most_prompt,
        "first_tokens": most_generated,
        "finished": most_generated,
        "rejected": MOST_REFUSALS_PER_SECOND * seconds,
    }
    # A request that begins was given a token. A request that ends has begun, or was aborted before.
    generated, first = increases.get("generation_tokens"), increases.get("first_tokens")
    if generated is not None:
        bounds["first_tokens"] = BALANCE_RATIO * generated + BALANCE_REQUESTS
    if first is not None:
        held = requests_held + (increases.get("aborted") or 0.0) + BALANCE_REQUESTS
        bounds["finished"] = BALANCE_RATIO * first + held
    for name, most in bounds.items():
        value = increases.get(name)
        if value is not None and value > most:
            return f"{name} grew by {value:.6g} in {seconds:.3g} s, at most {most:.3g} can be"
    return ""


def can_have_passed(passed_per_second: float, received_per_second: float, seconds: float) -> bool:
    """Return whether a gateway can have passed on so many while the engines received so many.

    seconds: of the gateway's window.
    """
    ahead = CROWD_REQUESTS / seconds if seconds > 0 else 0.0
    return passed_per_second <= BALANCE_RATIO * received_per_second + ahead


def is_law(law: ServiceLaw) -> bool:
    """Return whether an engine may follow this law: its step is neither too short nor too long."""
    loaded = law.step_fixed_seconds + law.step_per_sequence_seconds + law.loading_seconds
    return (
        law.step_seconds(1.0) >= SHORTEST_STEP_SECONDS / 10.0
        and loaded <= LONGEST_STEP_SECONDS
        and 0.0 <= law.prefill_per_token_seconds <= LONGEST_STEP_SECONDS
        and 0.0 <= law.context_per_token_seconds <= LONGEST_STEP_SECONDS
        and law.loading_seconds >= 0.0
    )


def _counters(sample: EngineSample) -> tuple[float | None, ...]:
    """Counters of a sample that only grow while an engine runs, in the order of `_COUNTERS`."""
    return (
        sample.generation_tokens_total,
        sample.prompt_tokens_total,
        _count(sample.ttft_seconds),
        sum(sample.finished_total.values()) if sample.finished_total else None,
        sample.rejected_total,
    )


def _count(histogram: HistogramSample | None) -> float | None:
    return None if histogram is None else histogram.count
