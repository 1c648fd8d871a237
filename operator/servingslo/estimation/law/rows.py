"""Turn one window into equations 1 = x·(a, b, c) for the service law, with their errors."""

import math
from collections.abc import Mapping

from servingslo.copying import replace
from servingslo.estimation.windows.counters import Window, tokens_per_sequence_step
from servingslo.records import record

# Executions and their time in microseconds, by batch size, as a server sums them up.
BatchCounts = Mapping[int, tuple[int, int]]

# Relative error of a window's accounting: measured residuals are 0.5–1.6 % on 15 s scrapes.
WINDOW_ERROR_RATIO = 0.01
# The same from mean inter-token latency, which sees concurrency only on average.
INTER_TOKEN_ERROR_RATIO = 0.05
# The same from mean time to first token: its first part, the rest of a step, is only estimated.
FIRST_TOKEN_ERROR_RATIO = 0.15
# Steps of one to three sequences deviate from the affine law (vLLM 0.32.0: up to 30 % at n = 1–2).
FEW_SEQUENCES = 4.0
FEW_SEQUENCES_ERROR_RATIO = 0.05
# Beyond this many arrivals during one time to first token, prefills share steps and delay each
# other, and the time is more than the own prompt's work.
LARGEST_PREFILL_OVERLAP = 0.2
# A window that is known less well than this does not judge predictions.
LARGEST_SCORED_ERROR_RATIO = 0.1
# Most tokens of an answer that counts as its first token alone: counters and histograms may be read
# a little apart. In a window with so many answers that is no accident.
LARGEST_ONE_TOKEN_ANSWER = 1.02
LEAST_ONE_TOKEN_ANSWERS = 3.0
# Prompt tokens of a request below which its prefill is not seen: a step computes one for each token
# that it makes, also for a request whose cache another engine has sent. Its cost is a sequence's.
LEAST_PREFILLED_TOKENS = 2.0
# Error of the busy time of an engine that only prefills, from its mean time to first token: 0.96 to
# 1.01 of the truth in simulation of one engine that is busy between a tenth and 94 % of the time.
ONE_TOKEN_ERROR_RATIO = 0.05
# Windows of an engine that is half idle are known to 10 to 15 %; they judge on average.
LARGEST_SCORED_ONE_TOKEN_ERROR_RATIO = 0.2
# Halvings of the busy share: to 1e-6.
BUSY_STEPS = 20
# Below this mean concurrency idle time dominates the accounting.
ACCOUNTED_CONCURRENCY = 4.0


@record(frozen=True, slots=True, kw_only=True)
class Row:
    """One equation 1 = x·(a, b, c), with its relative error.

    sequences: mean concurrency in it, 0 if nothing decodes. scored: whether it judges predictions.
    prefill_share: of its steps, those with a prompt; None if x is no mean of decoding steps.
    sequence_ratio: prior of b/a for such engines, None for the general prior.
    """

    x: tuple[float, float, float]
    error_ratio: float
    sequences: float
    prefill_per_step_tokens: float
    scored: bool = True
    sequence_ratio: float | None = None
    prefill_share: float | None = None

    def predicted(self, law: tuple[float, float, float]) -> float:
        """Return x·(a, b, c): busy time by this law over the observed one."""
        return self.x[0] * law[0] + self.x[1] * law[1] + self.x[2] * law[2]

    def scaled(self, ratio: float) -> "Row":
        """Usual pod's equation, from that of a pod whose steps take `ratio` times as long."""
        if ratio == 1.0:
            return self
        a, b, c = self.x
        return replace(self, x=(ratio * a, ratio * b, ratio * c))


def regression_rows(
    window: Window, dispersion: float = 1.0, engine_count: int = 1
) -> tuple[Row, ...]:
    """Return the equations of a window; it may give none.

    With a step count and little idle time: time = a·steps + b·generated + c·prefilled. The idle
    share of a window with L in the system on average is e^(−L/F) (the number in an insensitive
    queue is Poisson; F its dispersion), and it widens the error. Otherwise, or if that error is too
    large to judge by, two equations: mean inter-token latency, a + b·(1 + L) + c·(prompt tokens per
    step), since a token sees on average one more than the time average of concurrency; and mean
    time to first token, the only one that shows c there. If answers are one token, as in a prefill
    pool: a·steps + c·prefilled. None if load began or ended inside, because the idle share is then
    not that of a queue: the first windows of a new engine, until it has generated tokens, and
    windows in which a loaded engine was empty at a scrape. With speculative decoding a step
    generates several tokens of a sequence. The law is that of a token: a step counts as several,
    each with its share of the step's time. Times per token and of whole answers are then right; a
    first token waits longer than predicted, by part of a step.
    engine_count: engines of the fleet, which share its load.
    """
    inter_token_sum = window.inter_token_sum_seconds
    began = window.restarted or window.from_zero or not window.warm
    if began or not window.paired or not window.generated_tokens:
        return ()
    uncached = max((window.prompt_tokens or 0.0) - (window.cached_tokens or 0.0), 0.0)
    if uncached < LEAST_PREFILLED_TOKENS * (window.first_tokens or 0.0):
        uncached = 0.0
    if not inter_token_sum:
        row = _one_token_row(window, uncached, engine_count)
        return () if row is None else (row,)
    decoding = inter_token_sum / window.seconds
    in_system = decoding + (window.ttft_sum_seconds or 0.0) / window.seconds
    if window.step_count and in_system >= ACCOUNTED_CONCURRENCY:
        if _idle_at_an_end(window):
            return ()
        accounted = _accounting_row(window, uncached, in_system, dispersion)
        if accounted.scored:
            return (accounted,)
    rows = (
        _inter_token_row(window, uncached, decoding),
        _first_token_row(window, uncached, decoding),
    )
    return tuple(row for row in rows if row is not None)


def _idle_at_an_end(window: Window) -> bool:
    """Return whether the engine is known to have been empty at one of the two scrapes."""
    return (window.running_before == 0.0 and not window.waiting_before) or (
        window.running_after == 0.0 and not window.waiting_after
    )


def _accounting_row(
    window: Window, uncached_tokens: float, in_system: float, dispersion: float
) -> Row:
    steps = (window.step_count or 0.0) * tokens_per_sequence_step(window)
    generated = window.generated_tokens or 0.0
    idle = math.exp(-in_system / max(dispersion, 1.0))
    busy_seconds = window.seconds * (1.0 - idle)
    residence_seconds = in_system * window.seconds / max(window.first_tokens or 0.0, 1.0)
    idle_error = math.sqrt(idle * min(2.0 * residence_seconds / window.seconds, 1.0))
    sequences = generated / steps
    error_ratio = math.hypot(WINDOW_ERROR_RATIO, idle_error, _few_error(sequences))
    return Row(
        x=(steps / busy_seconds, generated / busy_seconds, uncached_tokens / busy_seconds),
        error_ratio=error_ratio,
        sequences=sequences,
        prefill_per_step_tokens=uncached_tokens / steps,
        scored=error_ratio <= LARGEST_SCORED_ERROR_RATIO,
        prefill_share=prefill_share((window.first_tokens or 0.0) / steps),
    )


def prefill_share(prompts_per_step: float) -> float:
    """Return the share of steps with a prompt, for prompts that come at random."""
    return -math.expm1(-prompts_per_step)


def _one_token_row(window: Window, uncached_tokens: float, engine_count: int) -> Row | None:
    """Time = a·steps + c·prefilled, for an engine whose answers are one token; else None.

    Nothing decodes there: b cannot be measured and does not matter. The time that a sequence adds
    to the step that prefills it is in c.
    """
    steps, answers = window.step_count, window.first_tokens or 0.0
    if not steps or answers < LEAST_ONE_TOKEN_ANSWERS or not uncached_tokens:
        return None
    if not window.ttft_sum_seconds or (
        (window.generated_tokens or 0.0) > LARGEST_ONE_TOKEN_ANSWER * answers
    ):
        return None
    busy = busy_ratio(window.ttft_sum_seconds / window.seconds, engine_count)
    busy_seconds = busy * window.seconds
    residence_seconds = window.ttft_sum_seconds / answers
    idle_error = math.sqrt((1.0 - busy) * min(2.0 * residence_seconds / window.seconds, 1.0))
    error_ratio = math.hypot(ONE_TOKEN_ERROR_RATIO, idle_error)
    return Row(
        x=(steps / busy_seconds, 0.0, uncached_tokens / busy_seconds),
        error_ratio=error_ratio,
        sequences=0.0,
        prefill_per_step_tokens=uncached_tokens / steps,
        scored=error_ratio <= LARGEST_SCORED_ONE_TOKEN_ERROR_RATIO,
    )


def busy_ratio(in_system: float, engine_count: int) -> float:
    """Return the busy share ρ of each of so many engines that hold in_system requests on average.

    For engines that share one queue, in_system = ρ + ρ^√(2(c+1)) / (c·(1−ρ)); one alone is busy
    in_system / (1 + in_system) of the time. Engines that are chosen at random hold more at the same
    ρ, so their result is too high.
    Source: H. Sakasegawa, "An approximation formula L_q ≃ α·ρ^β / (1−ρ)", 1977.
    """
    exponent = math.sqrt(2.0 * (engine_count + 1.0))
    low, high = 0.0, 1.0
    for _ in range(BUSY_STEPS):
        middle = 0.5 * (low + high)
        held = middle + middle**exponent / (engine_count * (1.0 - middle))
        low, high = (middle, high) if held < in_system else (low, middle)
    return 0.5 * (low + high)


def _inter_token_row(window: Window, uncached_tokens: float, concurrency: float) -> Row | None:
    if not window.inter_token_count or window.inter_token_count < 1:
        return None
    # vLLM observes the time between two steps that output tokens, however many tokens they output.
    step_seconds = (window.inter_token_sum_seconds or 0.0) / window.inter_token_count
    step_seconds /= tokens_per_sequence_step(window)
    sequences = 1.0 + concurrency
    prefill = uncached_tokens / window.seconds * step_seconds
    return Row(
        x=(1.0 / step_seconds, sequences / step_seconds, prefill / step_seconds),
        error_ratio=math.hypot(INTER_TOKEN_ERROR_RATIO, _few_error(sequences)),
        sequences=sequences,
        prefill_per_step_tokens=prefill,
        prefill_share=prefill_share((window.first_tokens or 0.0) / window.seconds * step_seconds),
    )


def _first_token_row(window: Window, uncached_tokens: float, concurrency: float) -> Row | None:
    """The rest of a step if one is in progress, then one step with the own prompt."""
    waited = (window.waiting_before or 0.0) + (window.waiting_after or 0.0)
    if not window.first_tokens or not window.ttft_sum_seconds or waited:
        return None
    ttft_seconds = window.ttft_sum_seconds / window.first_tokens
    if window.first_tokens / window.seconds * ttft_seconds > LARGEST_PREFILL_OVERLAP:
        return None
    steps = 1.0 + 0.5 * (1.0 - math.exp(-concurrency))
    prompt_tokens = uncached_tokens / window.first_tokens
    return Row(
        x=(steps / ttft_seconds, steps * concurrency / ttft_seconds, prompt_tokens / ttft_seconds),
        error_ratio=FIRST_TOKEN_ERROR_RATIO,
        sequences=concurrency,
        prefill_per_step_tokens=uncached_tokens / window.seconds * ttft_seconds,
        scored=False,
    )


def _few_error(sequences: float) -> float:
    return FEW_SEQUENCES_ERROR_RATIO if sequences < FEW_SEQUENCES else 0.0
