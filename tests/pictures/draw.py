"""Draws the pictures under docs/pictures.

    python -m tests.pictures.draw             all of them, as SVG
    python -m tests.pictures.draw FOLDER      as PNG, to look at

Each is made of text in this package or of a recording beside it; drawing again gives the same file.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from tests.pictures import architecture, decision

from servingslo_lab.cli.demo import dashboard, story

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
RECORDING = FOLDER / "surge.json"
ANSWERS = FOLDER / dashboard.ANSWERS_NAME
# Text stays text, and names of elements are the same in each run.
STEADY = {
    "svg.hashsalt": "servingslo",
    "svg.fonttype": "none",
    "font.size": 10,
    "font.family": "sans-serif",
}
# Drawn by the demo itself; here again from what it recorded.
RECORDED: Mapping[str, Callable[[Path], bool]] = {
    "surge": lambda path: story.draw(story.loads(RECORDING.read_text(encoding="utf-8")), path),
    "dashboard": lambda path: dashboard.draw(
        dashboard.loads(ANSWERS.read_text(encoding="utf-8")), path
    ),
}
FIGURES: Mapping[str, Callable[[], Any]] = {
    "architecture": architecture.figure,
    "decision": lambda: decision.figure(story.loads(RECORDING.read_text(encoding="utf-8"))),
}


def draw(folder: Path, suffix: str) -> list[Path]:
    """Draw all pictures into a folder; their paths."""
    mpl.use("Agg")
    paths = []
    for name, draw_recorded in RECORDED.items():
        paths.append(folder / f"{name}{suffix}")
        draw_recorded(paths[-1])
    for name, figure_of in FIGURES.items():
        with mpl.rc_context(STEADY):
            figure = figure_of()
            paths.append(folder / f"{name}{suffix}")
            metadata = {"Date": None} if suffix == ".svg" else None
            figure.savefig(paths[-1], dpi=110, metadata=metadata)
            plt.close(figure)
    return paths


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]), ".png")
    else:
        draw(FOLDER, ".svg")
