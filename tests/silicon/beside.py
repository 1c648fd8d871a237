"""The laws that the product carries beside the step times of measured kernels.

`python -m tests.silicon.beside` prints every table and writes those of each model into the page;
`make validate` prints them too. Errors are the law's beside the table's, in percent: mean and 95th
percentile of their sizes, the worst, and the mean (below 0: promised too fast) of steps without
prefill, with up to 512 tokens of it, and with more.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tests.silicon.laws import errors
from tests.silicon.tables import Table, tables

from servingslo.models.known_engines import known_engine

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "findings.md"
BEGIN, END = "<!-- made by python -m tests.silicon.beside -->", "<!-- end -->"
HEADER = ("model", "tables", "mean", "p95", "worst", "no prefill", "to 512", "more")
SMALL_PREFILL = 512


def figures(chosen: Sequence[Table]) -> list[str]:
    """The columns of these tables together."""
    parts = [
        (errors(known_engine(t.card.name, t.model.name, t.gpus).law, t), t.steps.prefill_tokens)
        for t in chosen
    ]
    error, prefill = (np.concatenate(column) * 100.0 for column in zip(*parts, strict=True))
    prefill = prefill / 100.0
    size = np.abs(error)
    bias = (
        error[prefill == 0.0].mean(),
        error[(prefill > 0.0) & (prefill <= SMALL_PREFILL)].mean(),
        error[prefill > SMALL_PREFILL].mean(),
    )
    worst = float(error[size.argmax()])
    sizes = f"{size.mean():.1f}", f"{np.percentile(size, 95):.0f}", f"{worst:+.0f}"
    return [str(len(chosen)), *sizes, *(f"{one:+.1f}" for one in bias)]


def by_model() -> list[list[str]]:
    """A row for each model, over all cards and numbers of them."""
    names = dict.fromkeys(table.model.name for table in tables())
    return [[name, *figures([t for t in tables() if t.model.name == name])] for name in names]


def text() -> Iterator[str]:
    """Lines for people: each table, then each model."""
    yield "Law beside measured kernels, error in percent: " + " ".join(HEADER[2:])
    rows = [*([table.name, *figures([table])] for table in tables()), *by_model()]
    for name, _, *rest in rows:
        yield f"{name:28s}" + "".join(f"{one:>11s}" for one in rest)


def table(rows: Iterable[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def main() -> None:
    """Print all of it, and write the rows of the models into the page."""
    sys.stdout.write("\n".join(text()) + "\n")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END, 1)[1]
    made = f"{BEGIN}\n\n{table(by_model())}\n\n{END}"
    PAGE.write_text(before + made + after, encoding="utf-8")


if __name__ == "__main__":
    main()
