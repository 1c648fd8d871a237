"""Detect requests that have become so much longer that memory would follow too late.

In a short window few requests begin, and most of its tokens are of earlier requests. A second of
one engine that makes 770 tokens while one request begins says nothing about lengths. So windows are
combined, back to a minute, until they hold enough requests, and are judged by their own sampling
error.
"""

import math
from collections.abc import Iterator, Sequence

from servingslo.estimation.windows.counters import Window
from servingslo.models.workload import LengthDistribution
from servingslo.records import record

# Evidence is of the last minute at most.
LONGEST_SECONDS = 60.0
# Nothing is concluded from less time than one of Prometheus's default scrapes, which jitter, or
# from fewer requests than a histogram needs before its shape is preferred to the prior's.
LEAST_MIX_SECONDS = 12.0
LEAST_MIX_REQUESTS = 20.0
# A change of the workload: requests so much longer than those remembered that memory would follow
# too late. With prompts three times as long, a fleet stayed sized for the old work for 12 minutes
# without one request in its objectives. Within the hour of the Azure conversation trace windows are
# up to 1.6 times as long as the remembered lengths. Following those at once costs 1.5 % of its
# replica-hours and meets no more objectives.
CHANGED_RATIO = 2.0
# The change must also exceed this many standard deviations of the requests counted.
# Judgement; measured by false changes on the hours of the Azure traces.
CHANGED_DEVIATIONS = 5.0
# Deviations by which the mean of the last minute is surely longer.
SURE_DEVIATIONS = 3.0
# In the steady state as many requests end as begin, within this share.
STEADY_RATIO = 0.1


@record(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Sums over windows of engines that count without a break.

    seconds: of the longest window of each tick, summed. started: requests that got their first
    token. running_change: growth of batches. Tokens: of prompts, cached ones among them, and
    generated.
    """

    seconds: float = 0.0
    started: float = 0.0
    running_change: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    generated_tokens: float = 0.0

    @property
    def prompt_mean_tokens(self) -> float:
        """Mean length of the prompts that began."""
        return self.prompt_tokens / self.started

    @property
    def uncached_mean_tokens(self) -> float:
        """Mean tokens of the prompts that began and that no cache had."""
        return (self.prompt_tokens - self.cached_tokens) / self.started

    @property
    def ended(self) -> float:
        """Requests that ended, or that were aborted."""
        return self.started - self.running_change

    @property
    def output_mean_tokens(self) -> float:
        """Mean output of the ended requests if as many end as begin; else 0.

        While the batch grows, tokens are generated for requests that end later.
        """
        if abs(self.ended - self.started) > STEADY_RATIO * self.started:
            return 0.0
        return self.generated_tokens / self.ended


def gather(
    old: tuple[Evidence, ...], windows: Sequence[Window], *, unbroken: bool
) -> tuple[Evidence, ...]:
    """Return the ticks of the last minute, the newest first.

    Tokens and requests of one window must be of the same scrapes; other windows are skipped.
    unbroken: whether no engine restarted or was doubted. If one did, its requests go to other
    engines, and their counts do not show the mix: gathering starts again.
    """
    if not unbroken:
        return ()
    told = [w for w in windows if w.paired and w.first_tokens is not None]
    if not told:
        return old
    newest = Evidence(
        seconds=max(w.seconds for w in told),
        started=sum(w.first_tokens or 0.0 for w in told),
        running_change=sum(running_changes(told)),
        prompt_tokens=sum(w.prompt_tokens or 0.0 for w in told),
        cached_tokens=sum(w.cached_tokens or 0.0 for w in told),
        generated_tokens=sum(w.generated_tokens or 0.0 for w in told),
    )
    kept, seconds = [newest], newest.seconds
    for tick in old:
        seconds += tick.seconds
        if seconds > LONGEST_SECONDS:
            break
        kept.append(tick)
    return tuple(kept)


def enough(ticks: Sequence[Evidence]) -> Iterator[Evidence]:
    """Yield sums over ever more of the newest ticks, once they are enough to judge lengths."""
    total = Evidence()
    for tick in ticks:
        total = Evidence(
            seconds=total.seconds + tick.seconds,
            started=total.started + tick.started,
            running_change=total.running_change + tick.running_change,
            prompt_tokens=total.prompt_tokens + tick.prompt_tokens,
            cached_tokens=total.cached_tokens + tick.cached_tokens,
            generated_tokens=total.generated_tokens + tick.generated_tokens,
        )
        if total.seconds >= LEAST_MIX_SECONDS and total.started >= LEAST_MIX_REQUESTS:
            yield total


def longer_ratios(
    prompt: LengthDistribution, output: LengthDistribution, ticks: Sequence[Evidence]
) -> tuple[float, float]:
    """Return how many times as long prompts and answers of the last minute are, where surely so.

    1 where they are not: memory follows shorter ones in time, and chance is no change.
    """
    found = list(enough(ticks))
    if not found:
        return 1.0, 1.0
    minute = found[-1]
    return (
        _longer_ratio(prompt, minute.prompt_mean_tokens, minute.started),
        _longer_ratio(output, minute.output_mean_tokens, minute.ended),
    )


def _longer_ratio(known: LengthDistribution, mean_tokens: float, count: float) -> float:
    if count < LEAST_MIX_REQUESTS:
        return 1.0
    ratio = mean_tokens / known.mean_tokens
    spread = known.second_moment_tokens2 / (known.mean_tokens * known.mean_tokens)
    return ratio if ratio > 1.0 + SURE_DEVIATIONS * math.sqrt(spread / count) else 1.0


def running_changes(windows: Sequence[Window]) -> list[float]:
    """Growth of each engine's batch, without engines that restarted inside the window."""
    return [
        w.running_after - w.running_before
        for w in windows
        if not w.restarted and w.running_after is not None and w.running_before is not None
    ]


def is_longer(
    known: LengthDistribution | None, mean_tokens: float, count: float, share_ratio: float = 1.0
) -> bool:
    """Return whether the mean of these requests belongs to another workload than the known one.

    With the known lengths, that many tokens would be of more requests: tokens / mean of them. By
    chance this count varies as in a compound Poisson process, with the variance count times E[x²] /
    mean².
    Source: the renewal reward theorem and its central limit (W. Feller, "An Introduction to
    Probability Theory and Its Applications", vol. 2, 1971, section XI.5).
    share_ratio: of their tokens that were counted, such as those that no cache had. It varies most
    if each request counts wholly or not at all, which is assumed.
    """
    if known is None or count < LEAST_MIX_REQUESTS or share_ratio <= 0.0:
        return False
    usual = mean_tokens * count / (known.mean_tokens * share_ratio)
    spread = known.second_moment_tokens2 / (known.mean_tokens * known.mean_tokens * share_ratio)
    chance = CHANGED_DEVIATIONS * math.sqrt(usual * spread)
    return usual > max(CHANGED_RATIO * count, count + chance)
