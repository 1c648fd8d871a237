"""Where a law was seen, and whether what was seen there shows that it bends.

Windows average over steps. Their means are kept in cells of like concurrency and prefill, a bounded
number of them. A bend is used only if the cells determine it: if it explains what the best line
leaves, by more than chance; else the law stays a line.
Source: profile of the least squares over t₀ and p₀, with the F test for nested models (G. A. F.
Seber and A. J. Lee, Linear Regression Analysis (2003), chapter 4).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from servingslo.estimation.law.rows import WINDOW_ERROR_RATIO, Row
from servingslo.models.engine.law_fit import (
    HIDDEN_TOKENS,
    LOADING_TOKENS,
    Fitted,
    Steps,
    fit_at,
    predicted_seconds,
)
from servingslo.models.engine.service_time import FloatArray, ServiceLaw
from servingslo.models.numerics import ALMOST_ONE

# Width of a cell, as ratios of sequences and of prefill tokens: within it a law is a line.
CELL_RATIO = 1.25
# Concurrency varies by a factor of ten at most while a configuration lasts, prefill by three.
MOST_CELLS = 32
# Windows show t₀ and p₀ less well than single steps: every other point of the grid will do.
COARSE = 2
# Cells before a bend is looked for: two more than a law has unknowns.
LEAST_CELLS = 7
# What each of a bend's two parameters must explain of the squared error, over what it leaves. At
# first more than contexts that change: they look like a bend, by 11 to 15 on simulated engines
# whose law is a line, while experts have 87 and more. A bend once found stays while it is more than
# chance, three standard deviations: later loads may not show it well.
FOUND_F_RATIO, HELD_F_RATIO = 40.0, 9.0
BEND_PARAMETERS, UNKNOWNS = 2, 6
# What every step loads, relative to the shortest step seen, and its uncertainty. A share of weights
# that few tokens touch looks like it where few tokens were never seen; a few windows outweigh it.
# Source: measured kernels: 0.9 for dense models, a quarter for experts.
FIXED_RATIO = 0.25
FIXED_SPREAD = 1.5
# Multiples of the highest concurrency seen at which the furthest of the admissible laws are kept.
PROBE_RATIOS = (1.0, 2.0, 8.0)
# Laws are admissible if their cost is within two standard deviations of the best one's.
ADMISSIBLE_COST = 4.0
# Laws agree where they lie no further apart: as far as a standard error may be, see `trust`.
AGREED_RATIO = 0.2


class Cell(NamedTuple):
    """Means over windows alike: sequences, prefill tokens a step, share of steps that prefill.

    seconds: of a step. weight: Σ 1/error², less the forgotten share.
    """

    sequences: float
    prefill_tokens: float
    prefill_share: float
    seconds: float
    weight: float


@dataclass(frozen=True, slots=True)
class Bend:
    """t₀ and p₀ of the best law, in tokens, and of those furthest from it that the cells admit too.

    Tokens are those of the grid; 0 for no term.
    """

    loading_tokens: float
    hidden_tokens: float
    others: tuple[tuple[float, float], ...] = ()


def add_windows(
    cells: tuple[Cell, ...], rows: Iterable[Row], keep_ratio: float
) -> tuple[Cell, ...]:
    """Return the cells with these windows; each forgets a little of those before it.

    Of each concurrency the heaviest cell is kept, so that what was seen once stays known.
    """
    found = {_place(cell.sequences, cell.prefill_tokens): cell for cell in cells}
    kept = 1.0
    for row in rows:
        if not row.scored or row.sequences < 1.0 or row.prefill_share is None:
            continue
        kept *= keep_ratio
        weight = 1.0 / row.error_ratio**2
        seconds = 1.0 / row.x[0]
        new = Cell(
            row.x[1] * seconds, row.x[2] * seconds, row.prefill_share, seconds, weight / kept
        )
        place = _place(new.sequences, new.prefill_tokens)
        old = found.get(place)
        found[place] = new if old is None else _joined(old, new)
    if kept == 1.0:
        return cells
    heaviest = sorted(found.items(), key=lambda item: -item[1].weight)
    of_counts = {place[0]: place for place, _ in reversed(heaviest)}
    heaviest.sort(key=lambda item: of_counts[item[0][0]] != item[0])
    return tuple(cell._replace(weight=cell.weight * kept) for _, cell in heaviest[:MOST_CELLS])


def _place(sequences: float, prefill_tokens: float) -> tuple[int, int]:
    return (
        round(math.log(max(sequences, 1.0)) / math.log(CELL_RATIO)),
        round(math.log(max(prefill_tokens, 1.0)) / math.log(CELL_RATIO)),
    )


def _joined(old: Cell, new: Cell) -> Cell:
    share = new.weight / (old.weight + new.weight)
    mean = [was + share * (now - was) for was, now in zip(old, new, strict=True)]
    return Cell(mean[0], mean[1], mean[2], mean[3], old.weight + new.weight)


def steps_seen(cells: Sequence[Cell]) -> Steps:
    """Return the cells as rows of a fit; contexts hardly vary, their cost is in the sequences."""
    n, p, share, seconds, weights = np.array(cells).T
    return Steps(n, p, np.zeros_like(n), seconds, share, weights)


def _evidence(cells: tuple[Cell, ...]) -> Steps:
    """Return the cells with a weak one for what an empty step would take."""
    shortest = min(cell.seconds for cell in cells)
    empty = Cell(0.0, 0.0, 0.0, FIXED_RATIO * shortest, 1.0 / FIXED_SPREAD**2)
    return steps_seen((*cells, empty))


def find_bend(cells: tuple[Cell, ...], held: Bend | None = None) -> Bend | None:
    """Return the bend that the cells determine; None if a line explains them as well.

    held: before. It stays while it explains more than chance, though loads no longer show it well.
    """
    if len(cells) < LEAST_CELLS:
        return None
    steps = _evidence(cells)
    line = fit_at(steps, 0.0, 0.0)
    freedom = max(len(cells) - UNKNOWNS, 1)
    least = HELD_F_RATIO if held else FOUND_F_RATIO
    # A line that misses cells by no more than the accounting of a window does is kept. Measured:
    # 0.4 % on engines whose law is a line, 3 to 9 % on experts.
    good = 0.0 if held else WINDOW_ERROR_RATIO**2 * sum(cell.weight for cell in cells)
    if line.cost <= max(good, least * BEND_PARAMETERS):
        return None
    grid = {
        (float(t), float(p)): fit_at(steps, float(t), float(p))
        for t in LOADING_TOKENS[::COARSE]
        for p in HIDDEN_TOKENS[::COARSE]
    }
    # A step takes time, however few tokens it has.
    grid = {at: one for at, one in grid.items() if one.law.step_fixed_seconds > 0.0}
    if not grid:
        return None
    place = min(grid, key=lambda at: grid[at].cost)
    left = max(grid[place].cost / freedom, 1.0)
    if (line.cost - grid[place].cost) / BEND_PARAMETERS < least * left:
        return None
    most = grid[place].cost + ADMISSIBLE_COST * left
    admissible = [at for at, found in grid.items() if found.cost <= most]
    highest = max(cell.sequences for cell in cells)
    ends = _like_seen(cells, [highest * ratio for ratio in PROBE_RATIOS])
    seconds = np.array([predicted_seconds(grid[at].law, ends) for at in admissible])
    extremes = {*seconds.argmin(axis=0).tolist(), *seconds.argmax(axis=0).tolist()}
    return Bend(*place, tuple(admissible[i] for i in sorted(extremes) if admissible[i] != place))


def bent_law(cells: tuple[Cell, ...], bend: Bend) -> ServiceLaw:
    """Return the law with this bend that fits the cells best."""
    return _fitted(cells, bend.loading_tokens, bend.hidden_tokens).law


def reach_sequences(cells: tuple[Cell, ...], bend: Bend, most: float) -> float:
    """Return up to how many sequences admissible laws agree, at least those seen, at most this."""
    counts = [max(cell.sequences for cell in cells)]
    while counts[-1] < most:
        counts.append(min(counts[-1] * CELL_RATIO, most))
    agreed = band_ratios(cells, bend, counts) <= AGREED_RATIO
    return counts[max(int(np.argmin(agreed)) - 1, 0) if not agreed.all() else -1]


def band_ratios(cells: tuple[Cell, ...], bend: Bend, sequences: Sequence[float]) -> FloatArray:
    """Return how far the step times of admissible laws lie from the best one's, relative to them.

    By number of sequences; it grows with the distance from what was seen.
    """
    steps = _like_seen(cells, sequences)
    best = predicted_seconds(bent_law(cells, bend), steps)
    others = [predicted_seconds(_fitted(cells, *at).law, steps) for at in bend.others]
    band: FloatArray = np.abs(np.array([best, *others]) / best - 1.0).max(axis=0)
    return band


def _like_seen(cells: tuple[Cell, ...], sequences: Sequence[float]) -> Steps:
    """Return steps with so many sequences, and prefill in proportion as in the heaviest cell."""
    heaviest = max(cells, key=lambda cell: cell.weight)
    tokens = heaviest.prefill_tokens / heaviest.sequences
    prompts = -math.log1p(-min(heaviest.prefill_share, ALMOST_ONE)) / heaviest.sequences
    return steps_seen([Cell(n, tokens * n, -math.expm1(-prompts * n), 1.0, 1.0) for n in sequences])


# A tick asks for the same few laws several times.
@lru_cache(maxsize=32)
def _fitted(cells: tuple[Cell, ...], loading_tokens: float, hidden_tokens: float) -> Fitted:
    return fit_at(_evidence(cells), loading_tokens, hidden_tokens)


def predicted_ratios(law: ServiceLaw, rows: Sequence[Row]) -> list[float]:
    """Return busy times by the law over the observed ones, by window."""
    if not law.bends or not rows:
        line = law.step_fixed_seconds, law.step_per_sequence_seconds, law.prefill_per_token_seconds
        return [row.predicted(line) for row in rows]
    seen = (
        Cell(x[1] / x[0], x[2] / x[0], 1.0 if share is None else share, 1.0 / x[0], 1.0)
        for x, share in ((row.x, row.prefill_share) for row in rows)
    )
    steps = steps_seen(tuple(seen))
    ratios: list[float] = (predicted_seconds(law, steps) / steps.seconds).tolist()
    return ratios
