"""The drawing of the parts: what is read, the one plan, what is written."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, SOFT = "#264653", "#6c757d"
READ, CORE, WRITE, ASK = "#d8e8f5", "#d7efe9", "#fbe3d3", "#f3efd2"
# Name: (left, bottom, width, height, colour, title, lines).
BOXES: dict[str, tuple[float, float, float, float, str, str, str]] = {
    "prometheus": (0.2, 4.1, 2.5, 1.0, READ, "Prometheus", "engines, gateway, GPUs"),
    "cluster": (0.2, 2.6, 2.5, 1.0, READ, "API server", "pods, flags, other scalers"),
    "spec": (0.2, 1.1, 2.5, 1.0, ASK, "ServingSLO", "objectives and bounds"),
    "join": (3.5, 2.6, 1.5, 1.0, READ, "join", "one observation"),
    "estimate": (5.7, 4.1, 1.9, 1.0, CORE, "estimation", "arrivals, step time"),
    "models": (8.1, 4.1, 1.9, 1.0, CORE, "models", "percentiles, KV cache"),
    "policy": (5.7, 2.6, 4.3, 1.0, CORE, "policy", "demand → need → guards → decision"),
    "state": (5.7, 1.1, 4.3, 1.0, CORE, "planner state", "what is learnt; survives a restart"),
    "scale": (11.0, 4.1, 2.6, 1.0, WRITE, "/scale, or KEDA", "the replica count"),
    "knobs": (11.0, 2.6, 2.6, 1.0, WRITE, "if allowed", "batch limits, bound in flight"),
    "report": (11.0, 1.1, 2.6, 1.0, WRITE, "report", "status, events, log, metrics"),
}
# From, to: sides of boxes (l, r, t, b).
ARROWS = (
    ("prometheus", "r", "join", "l"),
    ("cluster", "r", "join", "l"),
    ("spec", "r", "join", "l"),
    ("join", "r", "estimate", "l"),
    ("join", "r", "policy", "l"),
    ("estimate", "b", "policy", "t"),
    ("models", "b", "policy", "t"),
    ("policy", "b", "state", "t"),
    ("policy", "r", "scale", "l"),
    ("policy", "r", "knobs", "l"),
    ("policy", "r", "report", "l"),
)
PURE = (5.4, 0.75, 4.9, 4.75)


def figure() -> Any:
    """The drawing, 14 by 6 units."""
    drawn, panel = plt.subplots(figsize=(10.5, 4.6))
    panel.set_xlim(0, 13.8)
    panel.set_ylim(0.3, 6.0)
    panel.axis("off")
    drawn.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.99)
    left, bottom, width, height = PURE
    panel.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, boxstyle="round,pad=0,rounding_size=0.15",
            facecolor="none", edgecolor=SOFT, linestyle="--",
        )
    )  # fmt: skip
    panel.text(
        left + 0.15, bottom + height + 0.12, "plan(): pure, no I/O, no clock", color=SOFT, size=10
    )
    for one in BOXES.values():
        _box(panel, *one)
    for start, leaving, end, entering in ARROWS:
        both = start == "policy" and end == "state"
        panel.add_patch(
            FancyArrowPatch(
                _side(start, leaving, end), _side(end, entering, start),
                arrowstyle="<|-|>" if both else "-|>", mutation_scale=11, color=INK, lw=1.1,
            )
        )  # fmt: skip
    return drawn


def _box(
    panel: Any, left: float, bottom: float, width: float, height: float, colour: str, title: str,
    lines: str,
) -> None:  # fmt: skip
    panel.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=colour, edgecolor=INK, lw=1.1,
        )
    )  # fmt: skip
    middle = left + width / 2
    panel.text(middle, bottom + 0.62, title, ha="center", color=INK, size=11, weight="bold")
    panel.text(middle, bottom + 0.24, lines, ha="center", color=INK, size=8.5)


def _side(name: str, side: str, other: str) -> tuple[float, float]:
    """Where an arrow meets a box: mid-side, or below or above what it comes from."""
    left, bottom, width, height, *_ = BOXES[name]
    if side in "lr":
        return left + (width if side == "r" else 0.0), bottom + height / 2
    there = BOXES[other][0] + BOXES[other][2] / 2
    across = min(max(there, left + 0.3), left + width - 0.3)
    return across, bottom + (height if side == "t" else 0.0)
