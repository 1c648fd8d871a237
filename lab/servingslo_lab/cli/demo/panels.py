"""The common parts of the demo's pictures: matplotlib if it is installed, panels, and PNG bytes."""

import io
from collections.abc import Iterable, Sequence
from typing import Any


def pyplot() -> Any | None:
    """Return matplotlib's pyplot, which draws into memory; None without the extra `report`."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  optional extra `report`
    except ImportError:
        return None
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 - as above

    return plt


def frame_lightly(panels: Iterable[Any]) -> None:
    """Give each panel a light grid and only the left and the lower edge."""
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)


def draw_replicas(
    panel: Any,
    minutes: Sequence[float],
    ordered: tuple[str, Sequence[int]],
    serving: tuple[str, Sequence[int]],
) -> None:
    """Draw two replica counts as steps, each with its label; the last panel of a picture."""
    for (label, counts), color, style in zip(
        (ordered, serving), ("#2a9d8f", "#264653"), ("-", "--"), strict=True
    ):
        panel.step(minutes, counts, where="post", color=color, ls=style, label=label)
    panel.set_ylabel("replicas")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("minutes")
    panel.legend(frameon=False, loc="upper left")


def png(plt: Any, figure: Any) -> bytes:
    """Return the figure as PNG, and close it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return buffer.getvalue()
