"""A shadow as text: the sentences that the page has too, and a table."""

import math
from collections.abc import Callable, Iterator

from servingslo.explain.format import number
from servingslo.units import format_duration, timestamp_from_seconds
from servingslo_lab.cli.columns import aligned
from servingslo_lab.cli.shadowing.play import SEEN, SERVINGSLO
from servingslo_lab.cli.shadowing.summary import Comparison, Figure, Outcome, Shadow

HEAD = (
    "ROW", "REPLICAS", "MEAN", "CHANGES", "GPU HOURS", "95 %", "MISSED", "95 %", "OF", "SHARE",
    "DAYS KEPT",
)  # fmt: skip
_ABSENT = "-"
_MOST_GAPS = 20


def shadow_text(shadow: Shadow) -> str:
    """The table, and what it rests on."""
    return "\n".join(_lines(shadow))


def _lines(shadow: Shadow) -> Iterator[str]:
    yield title(shadow)
    yield from verdict(shadow)
    yield from aligned(HEAD, [cells(one, shadow) for one in shadow.outcomes], left=1)
    names = [one.name for one in shadow.outcomes]
    if len(shadow.days) > 1:
        days = [day_cells(shadow, place) for place in range(len(shadow.days))]
        yield from aligned(("DAY FROM", "READ", *names), days, left=1)
    yield from assumptions(shadow)
    for start, length, reason in gap_cells(shadow):
        yield f"Not read: {length} from {start}: {reason}"


def title(shadow: Shadow) -> str:
    """What was read."""
    over, requests = format_duration(shadow.seconds), number(shadow.requests)
    return f"{shadow.resource}: {over}, about {requests} requests"


def verdict(shadow: Shadow) -> Iterator[str]:
    """What ServingSLO would have used and missed, next to each of the others."""
    for one in shadow.comparisons:
        yield _compared(one)


def _compared(one: Comparison) -> str:
    other = "what was ordered" if one.name == SEEN else f"{one.name} as played"
    hours = one.gpu_hours_ratio
    if not math.isfinite(hours.value):
        return f"{SERVINGSLO} next to {other}: no GPU hour to compare."
    parts = [f"{_signed_percent(hours.value)} GPU hours{_between(hours, _signed_percent)}"]
    if one.missed_ratio is not None:
        points = f"{_points(one.missed_ratio.value)} points of requests missed by the law"
        parts.append(f"{points}{_between(one.missed_ratio, _points)}")
    return f"{SERVINGSLO} next to {other}: {', '.join(parts)}."


def _signed_percent(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-", "\N{MINUS SIGN}")


def _points(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "\N{MINUS SIGN}")


def _between(one: Figure, words: Callable[[float], str]) -> str:
    if one.low is None or one.high is None:
        return ""
    return f" (95 %: {words(one.low)} to {words(one.high)})"


def cells(one: Outcome, shadow: Shadow) -> tuple[str, ...]:
    """One row of the table."""
    kept, known = shadow.kept_days[one.name]
    missed, share = one.missed_requests, one.missed_ratio
    return (
        f"{one.name}, {'measured' if one.measured else 'by the law'}",
        f"{one.least_replicas}..{one.greatest_replicas}",
        number(one.mean_replicas),
        str(one.changes),
        number(one.gpu_hours.value),
        interval(one.gpu_hours, number),
        _ABSENT if missed is None else number(missed.value),
        _ABSENT if missed is None else interval(missed, number),
        number(one.requests),
        _ABSENT if share is None else ratio_words(share.value),
        f"{kept} of {known}",
    )


def interval(one: Figure, words: Callable[[float], str]) -> str:
    """'12 to 15'; '-' without one."""
    if one.low is None or one.high is None:
        return _ABSENT
    return f"{words(one.low)} to {words(one.high)}"


def ratio_words(ratio: float) -> str:
    """'0.42 %'."""
    return f"{100 * ratio:.2f} %"


def day_cells(shadow: Shadow, place: int) -> tuple[str, ...]:
    """A day: when it began, how much of it was read, and each row's promise."""
    day = shadow.days[place]
    return (
        timestamp_from_seconds(day.start_seconds),
        format_duration(day.read_seconds),
        *(_promise(day.kept_ratio[one.name], shadow) for one in shadow.outcomes),
    )


def _promise(ratio: float | None, shadow: Shadow) -> str:
    if ratio is None:
        return _ABSENT
    return f"{'kept' if ratio >= shadow.target_share_ratio else 'lost'} {ratio_words(ratio)}"


def assumptions(shadow: Shadow) -> Iterator[str]:
    """What the figures rest on, each in a sentence."""
    yield (
        f"Promise: {100 * shadow.target_share_ratio:g} % of requests within every objective. "
        f"GPUs of a replica: {shadow.gpus_per_replica}."
    )
    yield (
        "Each rule saw the metrics of the replicas that were there: what its own count would have "
        "changed in them is not simulated."
    )
    yield (
        f"{shadow.rule}, played, ordered what was there for "
        f"{ratio_words(shadow.agreed_ratio)} of the time."
    )
    seen = next(one for one in shadow.outcomes if one.name == SEEN)
    if seen.measured and shadow.law_ratio is not None and seen.missed_ratio is not None:
        yield (
            f"Of what was, the law says {ratio_words(shadow.law_ratio.value)} missed; measured "
            f"{ratio_words(seen.missed_ratio.value)}."
        )
    if seen.most_missed_requests and seen.missed_requests is not None:
        most, least = seen.most_missed_requests, seen.missed_requests.value
        if most > least:
            yield (
                f"Measured misses are the least, {number(least)}; buckets allow up to "
                f"{number(most)}."
            )
    if shadow.judged_requests < shadow.requests:
        yield (
            f"Judged: {number(shadow.judged_requests)} of {number(shadow.requests)} requests; "
            "else no law was trusted, and ServingSLO kept what was there."
        )
    if all(one.gpu_hours.low is None for one in shadow.outcomes):
        yield "Too short for intervals: 16h at least."
    else:
        yield "Intervals: 95 % of 2,000 such times whose days or hours are drawn from this one."
    yield from shadow.notes
    for one in shadow.unread:
        yield f"Not known, so the rule may have ordered more: {one}"


def gap_cells(shadow: Shadow) -> Iterator[tuple[str, str, str]]:
    """What was not read: when, for how long, why; the longest ones, and the rest in one."""
    gaps = sorted(shadow.gaps, key=lambda gap: -gap.seconds)
    for gap in sorted(gaps[:_MOST_GAPS], key=lambda gap: gap.start_seconds):
        yield timestamp_from_seconds(gap.start_seconds), format_duration(gap.seconds), gap.reason
    if rest := gaps[_MOST_GAPS:]:
        seconds = sum(gap.seconds for gap in rest)
        yield "several times", format_duration(seconds), f"{len(rest)} shorter gaps"
