"""Rows of words and numbers as aligned lines."""

from collections.abc import Sequence

_GAP = "  "


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Lines with a head; the first `left` columns are set to the left, the others to the right."""
    table = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        _GAP.join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
