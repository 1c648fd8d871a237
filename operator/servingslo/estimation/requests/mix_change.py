"""Whether requests have become so much longer that memory would follow too late, and the evidence.

In a short window few requests begin, and its tokens are mostly of others: a second of one engine
that makes 770 tokens while one request begins says nothing of lengths. So windows are taken
together, back to a minute, until they hold enough, and judged by their own sampling error.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servingslo.estimation.windows.counters import Window
from servingslo.models.workload import LengthDistribution

# Evidence is of the last minute at most.
LONGEST_SECONDS = 60.0
# Nothing is concluded from less time than one of Prometheus's default scrapes, which jitter, or
# from fewer requests: as many as a histogram needs before its shape is preferred to the prior's.
LEAST_SECONDS = 12.0
LEAST_REQUESTS = 20.0
# A change of the workload: requests so much longer than those remembered that memory would follow
# too late. With prompts three times as long a fleet was sized for the old work for 12 minutes
# without one request in its objectives. Within the hour of the Azure conversation trace windows are
# up to 1.6 times as long as what is remembered; to follow those at once costs 1.5 % of its
# replica-hours and meets no more.
CHANGED_RATIO = 2.0
# And beyond so many standard deviations of what chance makes of the requests counted.
CHANGED_DEVIATIONS = 5.0
# As many requests end as begin, but for this share of them.
STEADY_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Sums over windows of engines that count without a break.

    seconds: of the longest window of each tick, summed. started: requests that got their first
    token. running_change: growth of batches. Tokens: prompts, of these cached, and generated.
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
    def ended(self) -> float:
        """Requests that ended, or that were given up."""
        return self.started - self.running_change

    @property
    def output_mean_tokens(self) -> float:
        """Mean output of the requests that ended, where as many end as begin; else 0.

        While the batch grows, tokens are generated for requests that end later.
        """
        if abs(self.ended - self.started) > STEADY_RATIO * self.started:
            return 0.0
        return self.generated_tokens / self.ended


def gathered(
    old: tuple[Evidence, ...], windows: Sequence[Window], *, unbroken: bool
) -> tuple[Evidence, ...]:
    """The ticks of the last minute, the newest first.

    Tokens and requests of one window are of the same scrapes, else they are not set against each
    other. unbroken: whether no engine began again or was doubted: requests go to others then, and
    what these do is not the mix. Evidence is gathered anew after it.
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
    """The newest ticks taken together, ever more of them, from where lengths may be judged."""
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
        if total.seconds >= LEAST_SECONDS and total.started >= LEAST_REQUESTS:
            yield total


def running_changes(windows: Sequence[Window]) -> list[float]:
    """By how much the batch of each engine grew that did not begin anew inside its window."""
    return [
        w.running_after - w.running_before
        for w in windows
        if not w.restarted and w.running_after is not None and w.running_before is not None
    ]


def is_longer(known: LengthDistribution | None, mean_tokens: float, count: float) -> bool:
    """Whether the mean of so many requests is that of another workload than the known one.

    With known lengths that many tokens are those of more requests, by chance as many as a compound
    Poisson process has: tokens / mean, with the variance of that count times E[x²] / mean².
    Source: the renewal reward theorem and its central limit (W. Feller, "An Introduction to
    Probability Theory and Its Applications", vol. 2, 1971, section XI.5).
    """
    if known is None or count < LEAST_REQUESTS:
        return False
    usual = mean_tokens * count / known.mean_tokens
    spread = known.second_moment_tokens2 / (known.mean_tokens * known.mean_tokens)
    chance = CHANGED_DEVIATIONS * math.sqrt(usual * spread)
    return usual > max(CHANGED_RATIO * count, count + chance)
