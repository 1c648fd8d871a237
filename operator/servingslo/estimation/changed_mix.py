"""Another mix: requests so much longer than those remembered that memory would follow too late.

Lengths are remembered for ten minutes. A fleet that is suddenly asked for three times the work of
each request is sized for the old work for most of them: with prompts three times as long, 12
minutes without one request in its objectives.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from servingslo.estimation import lengths
from servingslo.estimation.counters import Window
from servingslo.estimation.histograms import HistogramDelta, merged
from servingslo.estimation.lengths import LengthState
from servingslo.models.workload import LengthDistribution

# Within the hour of the Azure conversation trace windows are up to 1.6 times as long as what is
# remembered; to follow those at once costs 1.5 % of its replica-hours and meets no more.
CHANGED_RATIO = 2.0
# And beyond so many standard errors of a window's mean.
CHANGED_DEVIATIONS = 5.0
# As many requests end as begin, but for this share of them.
STEADY_RATIO = 0.1


def observe(
    state: LengthState,
    windows: Sequence[Window],
    prompt: HistogramDelta | None,
    output: HistogramDelta | None,
) -> LengthState:
    """The state with the windows and the pooled length histograms of one tick."""
    return lengths.observe(_without_old_mix(state, windows), windows, prompt, output)


def _without_old_mix(state: LengthState, windows: Sequence[Window]) -> LengthState:
    """What is remembered before these windows enter: of another mix only what still holds.

    Only longer requests count: shorter ones cost something until memory has followed, longer ones
    are a fleet that is too small. What did not change keeps its mean, with the weight of these
    windows alone. Outputs are told where as many requests end as begin: while the batch grows,
    tokens are generated for requests that end later.
    """
    started = sum(w.first_tokens or 0.0 for w in windows)
    if started <= 0 or state.started <= 0:
        return state
    prompt = sum(w.prompt_tokens or 0.0 for w in windows) / started
    output, ended = 0.0, started - sum(lengths.running_changes(windows))
    if abs(ended - started) <= STEADY_RATIO * started:
        output = sum(w.generated_tokens or 0.0 for w in windows) / ended
    longer_prompt = _is_longer(state.published_prompt, prompt, started)
    longer_output = _is_longer(state.published_output, output, ended)
    if not longer_prompt and not longer_output:
        return state
    state = _faded(state, min(started / state.started, 1.0))
    if longer_output:
        state = replace(state, generated_tokens=lengths.ended_requests(state) * output)
    if longer_prompt:
        tokens = max(state.started, state.finished) * prompt
        cached = sum(w.cached_tokens or 0.0 for w in windows) / started / prompt
        state = replace(state, prompt_tokens=tokens, cached_tokens=tokens * cached, prompt=None)
    return replace(state, held_tokens=0.0, held_by=0.0)


def _is_longer(known: LengthDistribution | None, mean_tokens: float, count: float) -> bool:
    """Whether the mean of so many requests is that of another mix than the known one."""
    if known is None or count <= 0:
        return False
    mean = known.mean_tokens
    error = math.sqrt(max(known.second_moment_tokens2 - mean * mean, 0.0) / count)
    return mean_tokens > max(CHANGED_RATIO * mean, mean + CHANGED_DEVIATIONS * error)


def _faded(state: LengthState, weight: float) -> LengthState:
    return replace(
        state,
        started=weight * state.started,
        finished=weight * state.finished,
        running_change=weight * state.running_change,
        generated_tokens=weight * state.generated_tokens,
        prompt_tokens=weight * state.prompt_tokens,
        cached_tokens=weight * state.cached_tokens,
        prompt=None if state.prompt is None else merged((state.prompt,), (weight,)),
        output=None if state.output is None else merged((state.output,), (weight,)),
    )
