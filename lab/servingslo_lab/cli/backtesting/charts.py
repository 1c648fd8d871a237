"""Charts as SVG, without a plotting library: so a report is one small file that opens anywhere."""

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 980, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 12, 24
# Half the width of a dot, its line included.
_DOT = 6.0
_INK, _FAINT, _GRID = "#3b4252", "#6b7280", "#e5e7eb"
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'
_X_TICKS, _Y_TICKS = 8, 4
# More points than pixels cannot be seen; the greatest of each bin is what a reader looks for.
_MOST_POINTS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line. y: None breaks it; infinite values run along the upper edge. group: CSS class."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str
    group: str = ""
    stepped: bool = False
    dashed: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An upright axis. floor: the least value that a logarithmic axis shows."""

    label: str
    logarithmic: bool = False
    floor: float = 0.0
    ceiling: float | None = None
    threshold: float | None = None


def line_chart(series: Sequence[Series], axis: Axis, *, x_label: str, x_max: float) -> str:
    """Lines over a common time axis."""
    top = _top(series, axis)
    place = _Frame(width=WIDTH, height=HEIGHT, x_max=max(x_max, 1e-9))
    y_of = _log_scale(axis.floor, top) if axis.logarithmic else _linear_scale(0.0, top)
    ticks = _log_ticks(axis.floor, top) if axis.logarithmic else _nice_ticks(top, _Y_TICKS)
    parts = [*place.grid(ticks, y_of, axis.label), *place.x_axis(x_label)]
    if axis.threshold is not None and axis.threshold <= top:
        y = place.y(y_of(axis.threshold))
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="#b91c1c" stroke-dasharray="5 4"/>'
        )
    floor = axis.floor if axis.logarithmic else 0.0
    parts.extend(_line(one, place, y_of, top, floor) for one in series)
    return _svg(WIDTH, HEIGHT, parts, axis.label)


def _top(series: Sequence[Series], axis: Axis) -> float:
    if axis.ceiling is not None:
        return axis.ceiling
    values = [y for one in series for y in one.y if y is not None and math.isfinite(y)]
    highest = max([*values, axis.threshold or 0.0, axis.floor * 10], default=1.0)
    return highest * 1.05 or 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where values lie in the picture."""

    width: int
    height: int
    x_max: float
    x_min: float = 0.0

    def x(self, value: float) -> float:
        share = (value - self.x_min) / (self.x_max - self.x_min)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        return _TOP + (1.0 - share) * (self.height - _TOP - _BOTTOM)

    def grid(
        self, ticks: Sequence[float], y_of: Callable[[float], float], label: str
    ) -> Iterator[str]:
        for tick in ticks:
            y = self.y(y_of(tick))
            yield (
                f'<line x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{_GRID}"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{_FAINT}">'
                f"{_number(tick)}</text>"
            )
        middle = (self.height - _BOTTOM + _TOP) / 2
        yield (
            f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle" '
            f'fill="{_INK}">{html.escape(label)}</text>'
        )

    def x_axis(self, label: str) -> Iterator[str]:
        step = _nice_step((self.x_max - self.x_min) / _X_TICKS)
        # The label has the right end for itself.
        last = self.width - _RIGHT - 7.0 * len(label) - 16
        first = math.ceil(self.x_min / step - 1e-9)
        for tick in (step * n for n in range(first, math.floor(self.x_max / step) + 1)):
            x = self.x(tick)
            if x <= last:
                yield (
                    f'<text x="{x:.1f}" y="{self.height - 7}" text-anchor="middle" '
                    f'fill="{_FAINT}">{_number(tick)}</text>'
                )
        yield (
            f'<text x="{self.width - _RIGHT}" y="{self.height - 7}" text-anchor="end" '
            f'fill="{_INK}">{html.escape(label)}</text>'
        )


def _line(
    one: Series, place: _Frame, y_of: Callable[[float], float], top: float, floor: float
) -> str:
    commands: list[str] = []
    last: float | None = None
    for x, value in _thinned(one.x, one.y):
        if value is None:
            last = None
            continue
        px, py = place.x(x), place.y(y_of(min(max(value, floor), top)))
        if last is None:
            commands.append(f"M{px:.1f} {py:.1f}")
        elif one.stepped:
            commands.append(f"H{px:.1f}" if py == last else f"H{px:.1f}V{py:.1f}")
        else:
            commands.append(f"L{px:.1f} {py:.1f}")
        last = py
    dash = ' stroke-dasharray="6 3"' if one.dashed else ""
    style = ' style="display:none"' if one.hidden else ""
    return (
        f'<path class="{one.group}" d="{"".join(commands)}" fill="none" stroke="{one.color}" '
        f'stroke-width="1.6" stroke-linejoin="round"{dash}{style}>'
        f"<title>{html.escape(one.name)}</title></path>"
    )


def _thinned(
    xs: Sequence[float], ys: Sequence[float | None]
) -> Iterator[tuple[float, float | None]]:
    """The points, of many in a row the greatest."""
    size = max(math.ceil(len(xs) / _MOST_POINTS), 1)
    for start in range(0, len(xs), size):
        values = [y for y in ys[start : start + size] if y is not None]
        yield xs[start], max(values, default=None)


def _linear_scale(low: float, high: float) -> Callable[[float], float]:
    return lambda value: (value - low) / (high - low)


def _log_scale(low: float, high: float) -> Callable[[float], float]:
    span = math.log(high / low)
    return lambda value: math.log(max(value, low) / low) / span


def _nice_ticks(top: float, count: int) -> list[float]:
    """Round numbers from 0 to at most `top`, about `count` of them."""
    step = _nice_step(top / max(count, 1))
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def _nice_step(least: float) -> float:
    """The least round number from `least` on."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-9)))
    return next(power * m for m in (1.0, 2.0, 2.5, 5.0, 10.0) if power * m >= least * 0.999)


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


def _number(value: float) -> str:
    if value and abs(value) < 1e-2:
        return f"{value:.3f}"
    return f"{round(value, 6):g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A policy in the plane of cost and share; half widths of intervals, 0 without.

    named: its name is written beside it, not only shown when pointed at. hollow: knew the trace.
    """

    name: str
    cost: float
    share_ratio: float
    color: str
    cost_half_width: float = 0.0
    share_half_width: float = 0.0
    named: bool = True
    hollow: bool = False


_FRONTIER_HEIGHT = 400
# Requests missed, on a logarithmic axis: 99 and 99.9 % are as far apart as 90 and 99 %.
_SHARE_TICKS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
_LEAST_MISSED = 5e-4
_LINE_HEIGHT = 14.0
# Rows below (or above) a dot in which its name may stand, the nearest first.
_NAME_ROWS = (0, 1, -1, 2, -2, 3, -3, 4, 5, 6)


def _share_height(share: float) -> float:
    return math.log(max(1.0 - share, _LEAST_MISSED)) / math.log(_LEAST_MISSED)


def frontier_chart(
    points: Sequence[Point],
    frontier: Sequence[Point],
    *,
    x_label: str,
    target_share_ratio: float,
    x_limit: float | None = None,
) -> str:
    """Share in SLO against cost: up and to the left is better; a line joins what nobody beats.

    x_limit: costs beyond it are drawn at the right edge.
    """
    costs = [min(p.cost, x_limit) if x_limit is not None else p.cost for p in points]
    least, most = min(costs), max(costs)
    margin = max(0.08 * (most - least), 0.03 * most)
    place = _Frame(
        width=WIDTH, height=_FRONTIER_HEIGHT,
        x_min=max(_floored(least - margin), 0.0), x_max=most + 2 * margin,
    )  # fmt: skip
    parts: list[str] = []
    for tick in _SHARE_TICKS:
        y = place.y(_share_height(tick))
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_GRID}"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" '
            f'fill="{_FAINT}">{100 * tick:g}</text>'
        )
    y = place.y(_share_height(target_share_ratio))
    parts += [
        (
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#b91c1c" stroke-dasharray="5 4"/>'
        ),
        *place.grid((), _share_height, "requests in SLO, %"),
        *place.x_axis(x_label),
        _staircase(frontier, place),
        *_dots(points, costs, place),
    ]
    return _svg(WIDTH, _FRONTIER_HEIGHT, parts, "share in SLO against cost")


def _floored(value: float) -> float:
    """A round number just below."""
    step = 10.0 ** math.floor(math.log10(max(abs(value), 1e-9))) / 2
    return math.floor(value / step) * step


def _staircase(frontier: Sequence[Point], place: _Frame) -> str:
    if not frontier:
        return ""
    ordered = sorted(frontier, key=lambda p: p.cost)
    path = ""
    for p in ordered:
        x, y = place.x(min(p.cost, place.x_max)), place.y(_share_height(p.share_ratio))
        path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}"
    path += f"H{WIDTH - _RIGHT}"
    return f'<path d="{path}" fill="none" stroke="#9ca3af" stroke-width="1.5"/>'


def _dots(points: Sequence[Point], costs: Sequence[float], place: _Frame) -> Iterator[str]:
    # Names lie over dots that have none, and beside all others.
    ordered = sorted(zip(points, costs, strict=True), key=lambda pair: pair[0].named)
    named = [
        (place.x(cost), place.y(_share_height(p.share_ratio))) for p, cost in ordered if p.named
    ]
    taken = [(x - _DOT, x + _DOT, y + 4) for x, y in named]
    for p, cost in ordered:
        x, y = place.x(cost), place.y(_share_height(p.share_ratio))
        fill = "white" if p.hollow else p.color
        tip = f"{p.name}: {100 * p.share_ratio:.2f} % at {p.cost:.3g}"
        yield from _bars(p, place, x, y)
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if p.named else 3.5}" fill="{fill}" '
            f'stroke="{p.color}" stroke-width="2"><title>{html.escape(tip)}</title></circle>'
        )
        if p.named:
            yield _name(p, x, y, place, taken)


def _bars(p: Point, place: _Frame, x: float, y: float) -> Iterator[str]:
    if p.cost_half_width > 0:
        low, high = place.x(p.cost - p.cost_half_width), place.x(p.cost + p.cost_half_width)
        yield (
            f'<line x1="{max(low, _LEFT):.1f}" x2="{min(high, WIDTH - _RIGHT):.1f}" '
            f'y1="{y:.1f}" y2="{y:.1f}" stroke="{p.color}" stroke-opacity="0.35"/>'
        )
    if p.share_half_width > 0:
        low = place.y(_share_height(max(p.share_ratio - p.share_half_width, 0.0)))
        high = place.y(_share_height(min(p.share_ratio + p.share_half_width, 1.0)))
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" '
            f'stroke="{p.color}" stroke-opacity="0.35"/>'
        )


def _name(
    p: Point, x: float, y: float, place: _Frame, taken: list[tuple[float, float, float]]
) -> str:
    """The name beside its dot, where it covers no other."""
    width = 7.0 * len(p.name)
    sides = (x + 9, x - 9 - width)
    tried = [(left, y + 4 + rows * _LINE_HEIGHT) for rows in _NAME_ROWS for left in sides]
    inside = [
        (left, at)
        for left, at in tried
        if left > _LEFT and left + width < place.width - _RIGHT and at > _TOP
    ] or tried
    free = [
        (left, at)
        for left, at in inside
        if not any(
            abs(at - other) < _LINE_HEIGHT and left < end and start < left + width
            for start, end, other in taken
        )
    ]
    left, at = (free or inside)[0]
    taken.append((left, left + width, at))
    return (
        f'<text x="{left:.1f}" y="{at:.1f}" fill="{_INK}" stroke="white" stroke-width="3" '
        f'paint-order="stroke">{html.escape(p.name)}</text>'
    )


def _svg(width: int, height: int, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(label)}" {_FONT}>'
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(parts)}</svg>'
    )
