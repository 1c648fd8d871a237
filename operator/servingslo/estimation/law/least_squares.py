"""Weighted least squares in three unknowns, in information form, with bounds at zero."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from servingslo.copying import replace

Vector = tuple[float, float, float]

# Ridge on the correlation scale: keeps the normal matrix invertible, far below any real spread.
RIDGE_RATIO = 1e-9
UNKNOWNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """Normal equations of rows 1 = x·θ: Σ w x xᵀ (upper triangle), Σ w x, Σ w, and Σ weight.

    normal: (xx00, xx01, xx02, xx11, xx12, xx22). moment: Σ w x. squares: Σ w (the right side is 1).
    weight: number of rows, less the forgotten share.
    """

    normal: tuple[float, float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    moment: Vector = (0.0, 0.0, 0.0)
    squares: float = 0.0
    weight: float = 0.0

    def scaled(self, keep_ratio: float) -> "Information":
        """Return the same equations at a fraction of their weight: forgetting."""
        k = keep_ratio
        n, m = self.normal, self.moment
        return Information(
            normal=(n[0] * k, n[1] * k, n[2] * k, n[3] * k, n[4] * k, n[5] * k),
            moment=(m[0] * k, m[1] * k, m[2] * k),
            squares=self.squares * k,
            weight=self.weight * k,
        )


EMPTY_INFORMATION = Information()


def add_rows(
    information: Information, rows: Iterable[tuple[Vector, float]], keep_ratio: float
) -> Information:
    """Return the equations with more rows 1 = x·θ; each keeps `keep_ratio` of the weight before it.

    rows: x, and the weight, 1 / variance, of each.
    """
    k = keep_ratio
    n0, n1, n2, n3, n4, n5 = information.normal
    m0, m1, m2 = information.moment
    squares, count = information.squares, information.weight
    for (x0, x1, x2), weight in rows:
        w0, w1, w2 = weight * x0, weight * x1, weight * x2
        n0, n1, n2 = n0 * k + w0 * x0, n1 * k + w0 * x1, n2 * k + w0 * x2
        n3, n4, n5 = n3 * k + w1 * x1, n4 * k + w1 * x2, n5 * k + w2 * x2
        m0, m1, m2 = m0 * k + w0, m1 * k + w1, m2 * k + w2
        squares, count = squares * k + weight, count * k + 1.0
    return Information(
        normal=(n0, n1, n2, n3, n4, n5), moment=(m0, m1, m2), squares=squares, weight=count
    )


def pull(information: Information, unknown: int, ratio: float, weight: float) -> Information:
    """Equations with 0 = θ[unknown] − ratio·θ[0] added at this weight; unknown is 1 or 2."""
    n = list(information.normal)
    n[0] += weight * ratio * ratio
    n[unknown] -= weight * ratio
    n[3 if unknown == 1 else 5] += weight
    return replace(information, normal=(n[0], n[1], n[2], n[3], n[4], n[5]))


def solve_nonnegative(information: Information) -> Vector | None:
    """Return the least-squares θ ≥ 0; None before there is any information.

    Exhaustive over the seven supports: exact in three unknowns and cheap.
    """
    if information.squares <= 0 or information.normal[0] <= 0:
        return None
    free = _solve(information, (0, 1, 2))
    if free is not None and min(free) >= 0:
        return free
    best: Vector | None = None
    best_cost = math.inf
    for size in (2, 1):
        for support in combinations(range(UNKNOWNS), size):
            candidate = _solve(information, support)
            if candidate is None or min(candidate) < 0:
                continue
            cost = _cost(information, candidate)
            if cost < best_cost:
                best, best_cost = candidate, cost
    return best


def residual_variance(information: Information, theta: Vector) -> float:
    """Return the mean w·residual² over rows less unknowns; at least 1, the value that w implies."""
    freedom = max(information.weight - UNKNOWNS, 1.0)
    return max(_cost(information, theta) / freedom, 1.0)


def standard_error(information: Information, point: Vector, variance: float) -> float | None:
    """Return the standard error of point·θ, None if the equations do not determine it."""
    solution = _solve_system(information.normal, point)
    if solution is None:
        return None
    return math.sqrt(max(sum(p * s for p, s in zip(point, solution, strict=True)) * variance, 0.0))


def _cost(information: Information, theta: Vector) -> float:
    """Σ w (1 − x·θ)²."""
    a, b, c = theta
    n, m = information.normal, information.moment
    quadratic = (
        n[0] * a * a
        + n[3] * b * b
        + n[5] * c * c
        + 2 * (n[1] * a * b + n[2] * a * c + n[4] * b * c)
    )
    linear = m[0] * a + m[1] * b + m[2] * c
    return max(information.squares - 2 * linear + quadratic, 0.0)


def _solve(information: Information, support: tuple[int, ...]) -> Vector | None:
    """Least squares on a support, zero elsewhere; None if the support has no data."""
    n = information.normal
    if len(support) == UNKNOWNS:
        return _solve_system(n, information.moment)
    full = ((n[0], n[1], n[2]), (n[1], n[3], n[4]), (n[2], n[4], n[5]))
    normal = [
        full[i][j] if i in support and j in support else float(i == j)
        for i in range(UNKNOWNS)
        for j in range(i, UNKNOWNS)
    ]
    moment = tuple(information.moment[i] if i in support else 0.0 for i in range(UNKNOWNS))
    return _solve_system(tuple(normal), moment)


def _solve_system(normal: tuple[float, ...], right: tuple[float, ...]) -> Vector | None:
    """Solve the symmetric 3×3 system, scaled to unit diagonal with a small ridge.

    An unknown that no row mentions has a zero diagonal: its solution is zero. If the right side
    requires another value, there is no solution.
    """
    diagonal = (normal[0], normal[3], normal[5])
    if any(d <= 0 and r != 0 for d, r in zip(diagonal, right, strict=True)):
        return None
    s0, s1, s2 = (1.0 / math.sqrt(d) if d > 0 else 0.0 for d in diagonal)
    one = 1.0 + RIDGE_RATIO
    x01, x02, x12 = normal[1] * s0 * s1, normal[2] * s0 * s2, normal[4] * s1 * s2
    r0, r1, r2 = right[0] * s0, right[1] * s1, right[2] * s2
    c00, c01, c02 = one * one - x12 * x12, x02 * x12 - x01 * one, x01 * x12 - x02 * one
    determinant = one * c00 + x01 * c01 + x02 * c02
    if determinant <= 0:
        return None
    c11, c12, c22 = one * one - x02 * x02, x01 * x02 - one * x12, one * one - x01 * x01
    return (
        (c00 * r0 + c01 * r1 + c02 * r2) / determinant * s0,
        (c01 * r0 + c11 * r1 + c12 * r2) / determinant * s1,
        (c02 * r0 + c12 * r1 + c22 * r2) / determinant * s2,
    )
