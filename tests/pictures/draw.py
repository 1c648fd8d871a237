"""Draws the pictures under docs/pictures.

    python -m tests.pictures.draw             all of them, as SVG
    python -m tests.pictures.draw FOLDER      as PNG, to look at
    python -m tests.pictures.draw --of out    of a new recording, that of a demo, as SVG

Each is made of text in this package or of one recording of the demo beside it, in two files;
drawing again gives the same file.
"""

import argparse
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


def take_over(demo: Path) -> None:
    """Replace the recording by that of a demo, both files or neither.

    Raises: OSError, ValueError, KeyError or TypeError if one of them is no such file.
    """
    texts = {path: (demo / path.name).read_text(encoding="utf-8") for path in (RECORDING, ANSWERS)}
    story.loads(texts[RECORDING])
    dashboard.loads(texts[ANSWERS])
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Draw, and take over a recording before if one is named."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the pages.")
    parser.add_argument("folder", type=Path, nargs="?", help="where PNGs are written instead")
    parser.add_argument("--of", type=Path, help="folder of a demo's output")
    options = parser.parse_args()
    if options.of is not None:
        take_over(options.of)
    draw(options.folder or FOLDER, ".svg" if options.folder is None else ".png")


if __name__ == "__main__":
    main()
