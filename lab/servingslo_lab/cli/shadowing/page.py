"""A shadow as one page of HTML: pictures inside, nothing from elsewhere, light or dark."""

import html
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from servingslo.explain.format import number
from servingslo.units import SECONDS_PER_DAY, format_duration, timestamp_from_seconds
from servingslo_lab.cli.backtesting.charts import Axis, Series, line_chart
from servingslo_lab.cli.shadowing.play import SERVINGSLO, Tick
from servingslo_lab.cli.shadowing.summary import Figure, Shadow, kept_ratio
from servingslo_lab.cli.shadowing.text import (
    HEAD,
    assumptions,
    cells,
    day_cells,
    gap_cells,
    interval,
    ratio_words,
    title,
    verdict,
)

# Wong's palette, which colour-blind people tell apart; lines differ in their dashes too.
# Source: B. Wong, Points of view: Color blindness, Nature Methods 8 (2011).
_CLASSES = ("seen", "rule", "ours")
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --faint: #4b5563; --line: #d1d5db;
  --paper: #fff; --card: #f3f4f6; --seen: #6b7280; --rule: #b45309; --ours: #0062a3;
  --lost: #b91c1c; --kept: #15803d }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e7eb; --faint: #a8b0bd; --line: #374151;
  --paper: #111827; --card: #1f2937; --seen: #a8b0bd; --rule: #f0a94b; --ours: #62b5f0;
  --lost: #fca5a5; --kept: #86efac } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1100px; margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .2rem }
h2 { font-size: 1.15rem; margin: 2rem 0 .3rem }
p { margin: .3rem 0 } .faint, caption, figcaption, th { color: var(--faint) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .8rem;
  margin: 1rem 0 }
.card { background: var(--card); border-radius: 8px; padding: .8rem 1rem;
  border-left: 5px solid var(--line) }
.card b { font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums }
.card small { display: block; color: var(--faint); font-size: .85rem }
.card h3 { font-size: .95rem; margin: 0 0 .3rem }
table { border-collapse: collapse; width: 100%; font-size: .875rem;
  font-variant-numeric: tabular-nums }
caption { text-align: left; padding-bottom: .3rem }
th, td { padding: .35rem .4rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap }
thead th { font-weight: 600; font-size: .78rem } tbody th { color: var(--ink); font-weight: 600;
  white-space: normal }
th:first-child, td:first-child, td.l, th.l { text-align: left } td.l { white-space: normal }
.lost { color: var(--lost); font-weight: 600 } .kept { color: var(--kept) }
.scroll { overflow-x: auto } figure { margin: .4rem 0 1rem }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--faint) }
svg rect { fill: none }
svg line { stroke: var(--line) } svg line[stroke-dasharray] { stroke: var(--lost) }
svg path.seen { stroke: var(--seen) } svg path.rule { stroke: var(--rule) }
svg path.ours { stroke: var(--ours); stroke-width: 2.2 }
.keys span { display: inline-block; margin-right: 1.2em } .keys i { display: inline-block;
  width: 1.8em; border-top: 3px solid; vertical-align: middle; margin-right: .4em }
.keys i.rule { border-top-style: dashed }
.card.seen, i.seen { border-color: var(--seen) } .card.rule, i.rule { border-color: var(--rule) }
.card.ours, i.ours { border-color: var(--ours) }
li { margin: .15rem 0 } ul { padding-left: 1.2rem }
@media print { body { margin: 0; max-width: none } figure, tr { break-inside: avoid } }
"""
# A week in hours: each is wide enough for a step of a line.
_PARTS, _MINUTE_SECONDS = 168, 60.0


def page(shadow: Shadow) -> str:
    """The page."""
    name = f"{shadow.resource}: {shadow.rule} and {SERVINGSLO}"
    start = timestamp_from_seconds(shadow.start_seconds)
    sections = [
        f"<h1>{_text(name)}</h1>",
        f'<p class="faint">{_text(title(shadow))}, from {start}</p>',
        *_cards(shadow),
        *(f"<p><b>{_text(one)}</b></p>" for one in verdict(shadow)),
        *_figures(shadow),
        *_charts(shadow),
        *_days(shadow),
        "<h2>What the figures rest on</h2><ul>",
        *(f"<li>{_text(one)}</li>" for one in assumptions(shadow)),
        "</ul>",
        *_gaps(shadow),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(name)}</title><style>{_STYLE}</style></head><body><main>\n"
        + "\n".join(sections)
        + "\n</main></body></html>"
    )


def _cards(shadow: Shadow) -> Iterator[str]:
    """The two figures of each row that a meeting asks for."""
    yield '<div class="cards">'
    for kind, one in zip(_CLASSES, shadow.outcomes, strict=True):
        row = dict(zip(HEAD, cells(one, shadow), strict=True))
        hours, share = one.gpu_hours, one.missed_ratio
        told = "measured" if one.measured else "by the law"
        spread = "" if share is None else _within(share, ratio_words)
        yield (
            f'<section class="card {kind}"><h3>{_text(one.name)}</h3>'
            f"<p><b>{row['GPU HOURS']}</b> GPU hours<small>{_within(hours, number)}</small></p>"
            f"<p><b>{row['SHARE']}</b> of requests missed, {told}<small>{spread}</small></p>"
            f"<p>Promise kept on {row['DAYS KEPT']} days</p></section>"
        )
    yield "</div>"


def _within(figure: Figure, words: Callable[[float], str]) -> str:
    return f"95 %: {interval(figure, words)}" if figure.low is not None else ""


def _figures(shadow: Shadow) -> Iterator[str]:
    yield from _table(
        "Figures",
        "MISSED: requests that missed an objective, of those in the column OF.",
        HEAD,
        [cells(one, shadow) for one in shadow.outcomes],
    )


def _days(shadow: Shadow) -> Iterator[str]:
    rows = [day_cells(shadow, place) for place in range(len(shadow.days))]
    yield from _table(
        "The promise, day by day",
        f"Share of requests within every objective; {100 * shadow.target_share_ratio:g} % keeps "
        "it. READ: how much of the day could be read.",
        ("DAY FROM", "READ", *(one.name for one in shadow.outcomes)),
        rows,
    )


def _gaps(shadow: Shadow) -> Iterator[str]:
    rows = [*gap_cells(shadow)]
    if not rows:
        yield "<h2>Not read</h2><p>Nothing: every look of the time was answered in full.</p>"
        return
    yield from _table(
        "Not read", "These times are in no figure.", ("FROM", "FOR", "WHY"), rows, left=3
    )


def _table(
    head: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1
) -> Iterator[str]:
    yield f'<h2>{head}</h2><div class="scroll"><table><caption>{_text(caption)}</caption>'
    yield "<thead><tr>"
    for place, name in enumerate(columns):
        yield f'<th scope="col"{_left(place, left)}>{_text(name)}</th>'
    yield "</tr></thead><tbody>"
    for first, *others in rows:
        tds = "".join(
            f"<td{_left(place, left) or _mood(cell)}>{_text(cell)}</td>"
            for place, cell in enumerate(others, start=1)
        )
        yield f'<tr><th scope="row">{_text(first)}</th>{tds}</tr>'
    yield "</tbody></table></div>"


def _left(place: int, left: int) -> str:
    return ' class="l"' if place < left else ""


def _mood(cell: str) -> str:
    word = cell.partition(" ")[0]
    return f' class="{word}"' if word in {"kept", "lost"} else ""


def _charts(shadow: Shadow) -> Iterator[str]:
    """Replicas, load and misses over the time, broken where nothing was read."""
    names = [one.name for one in shadow.outcomes]
    measured = any(one.measured for one in shadow.outcomes)
    parts = _Parts(shadow.ticks)
    every = format_duration(parts.seconds)
    yield f"<h2>Over the time, in steps of {every}</h2>"
    keys = "".join(
        f'<span><i class="{kind}" aria-hidden="true"></i>{_text(name)}</span>'
        for kind, name in zip(_CLASSES, names, strict=True)
    )
    yield f'<p class="keys">{keys}</p>'
    yield _figure(
        "Replicas that were ordered",
        [
            parts.line(kind, name, partial(_mean_replicas, name=name))
            for kind, name in zip(_CLASSES, names, strict=True)
        ],
        Axis(label="replicas"),
        parts.last_day,
    )
    yield _figure(
        "Load: requests that arrived, a second",
        [parts.line("seen", "load", _mean_rate)],
        Axis(label="requests/s"),
        parts.last_day,
    )
    yield _figure(
        "Requests that missed an objective, in %. Dashed line: what the promise allows",
        [
            parts.line(kind, name, partial(_missed_percent, name=name, measured=measured))
            for kind, name in zip(_CLASSES, names, strict=True)
        ],
        Axis(label="missed, %", threshold=100 * (1 - shadow.target_share_ratio)),
        parts.last_day,
    )


class _Parts:
    """Equal parts of the time, as many as a picture shows, each with its ticks."""

    def __init__(self, ticks: Sequence[Tick]) -> None:
        start, last = ticks[0].time_seconds, ticks[-1]
        end = last.time_seconds + last.seconds - start
        self.seconds = max(math.ceil(end / _PARTS / _MINUTE_SECONDS), 1) * _MINUTE_SECONDS
        self.last_day = max(end, _MINUTE_SECONDS) / SECONDS_PER_DAY
        self._ticks: list[list[Tick]] = [[] for _ in range(max(math.ceil(end / self.seconds), 1))]
        for tick in ticks:
            place = int((tick.time_seconds - start) // self.seconds)
            self._ticks[min(place, len(self._ticks) - 1)].append(tick)

    def line(self, kind: str, name: str, of: Callable[[Sequence[Tick]], float | None]) -> Series:
        """A line with one value a part; None breaks it."""
        values = [of(ticks) if ticks else None for ticks in self._ticks]
        width, points = self.seconds / SECONDS_PER_DAY, []
        for place, (value, following) in enumerate(pairwise([*values, None])):
            points.append((place * width, value))
            if following is None:
                # Up to the end of the part, that of a gap or of the time.
                points.append((min((place + 1) * width, self.last_day), value))
        return Series(
            name=name,
            x=[x for x, _ in points],
            y=[y for _, y in points],
            color="currentColor",
            group=kind,
            stepped=True,
            dashed=kind == "rule",
        )


def _mean_replicas(ticks: Sequence[Tick], name: str) -> float:
    return sum(tick.replicas[name] for tick in ticks) / len(ticks)


def _mean_rate(ticks: Sequence[Tick]) -> float | None:
    rates = [tick.arrival_rate_per_second for tick in ticks]
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


def _missed_percent(ticks: Sequence[Tick], name: str, *, measured: bool) -> float | None:
    kept = kept_ratio(ticks, name, measured=measured)
    return None if kept is None else 100 * (1 - kept)


def _figure(words: str, series: Sequence[Series], axis: Axis, last: float) -> str:
    picture = line_chart(series, axis, x_label="days", x_max=last)
    return f"<figure><figcaption>{_text(words)}</figcaption>{picture}</figure>"


def _text(words: str) -> str:
    return html.escape(words)
