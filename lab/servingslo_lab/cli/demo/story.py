"""One picture of a surge: arrivals rise, replicas are ordered, become ready, are released.

`make demo` writes it with the recording that it is drawn from. Draw a recording again with
``python -m servingslo_lab.cli.demo.story RECORDING.json PICTURE.svg``.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from servingslo.units import SECONDS_PER_MINUTE, format_duration
from servingslo_lab.cli.demo.panels import frame_lightly, pyplot
from servingslo_lab.cli.demo.timeline import DemoObjective, DemoSample, Timeline

_ARRIVALS, _LATENCY, _DESIRED, _READY, _SURGE = (
    "#1d3557",
    "#e76f51",
    "#2a9d8f",
    "#264653",
    "#f4a261",
)


def write(folder: Path, timeline: Timeline) -> list[Path]:
    """Write the recording, and the picture if matplotlib is installed; the paths written."""
    name = "trace" if timeline.surge is None else "surge"
    recording, picture = folder / f"{name}.json", folder / f"{name}.svg"
    recording.write_text(dumps(timeline), encoding="utf-8")
    return [recording, picture] if draw(timeline, picture) else [recording]


def dumps(timeline: Timeline) -> str:
    """The timeline as JSON, one sample a line; `loads` reads it."""
    document = asdict(timeline)
    samples, decisions = document.pop("samples"), document.pop("decisions")
    head = json.dumps(document)[:-1]
    lines = ",\n".join(json.dumps(_rounded(sample)) for sample in samples)
    told = ",\n".join(json.dumps([round(at, 1), line]) for at, line in decisions)
    return f'{head},\n"samples": [\n{lines}],\n"decisions": [\n{told}]}}\n'


def loads(text: str) -> Timeline:
    """The timeline that `dumps` wrote. Raises: ValueError, KeyError or TypeError for other text."""
    document = json.loads(text)
    return Timeline(
        objectives=tuple(DemoObjective(**one) for one in document.pop("objectives")),
        samples=[DemoSample(**one) for one in document.pop("samples")],
        decisions=[(at, line) for at, line in document.pop("decisions")],
        **document,
    )


def milestones(timeline: Timeline) -> list[tuple[float, str]]:
    """(seconds, words) of what the picture names, in order; those that did not happen are left out.

    The surge begins; the first order after it; the moment when the largest count decided is ready;
    the first release after that. Without a surge, those since traffic began.
    """
    begin, _ = timeline.surge or (0.0, 0.0)
    found = [] if timeline.surge is None else [(begin, "surge begins")]
    delay = timeline.first_scale_up_after(begin)
    if delay is not None:
        later = f", {format_duration(round(delay))} later" if found else ""
        found.append((begin + delay, f"ordered{later}"))
    after = [s for s in timeline.samples if s.elapsed_seconds >= begin]
    largest = max((s.desired_replicas for s in after), default=0)
    ready = next((s for s in after if s.ready_replicas >= largest), None)
    if ready is None or delay is None:
        return found
    found.append((ready.elapsed_seconds, f"all {largest} ready"))
    released = next(
        (
            s.elapsed_seconds
            for s in after
            if s.elapsed_seconds > ready.elapsed_seconds and s.desired_replicas < largest
        ),
        None,
    )
    return found if released is None else [*found, (released, "released")]


def draw(timeline: Timeline, path: Path) -> bool:
    """Draw three panels into a file of the path's format; False where matplotlib is missing."""
    plt = pyplot()
    if plt is None:
        return False

    steady = {"svg.hashsalt": "servingslo", "svg.fonttype": "none", "font.size": 10}
    with plt.rc_context(steady):
        figure, panels = plt.subplots(
            3, 1, sharex=True, figsize=(9, 5.6), height_ratios=(1, 1, 1.4), constrained_layout=True
        )
        _demand(panels[0], timeline)
        _latency(panels[1], timeline)
        _replicas(panels[2], timeline)
        if timeline.surge is not None:
            start, end = (seconds / SECONDS_PER_MINUTE for seconds in timeline.surge)
            for panel in panels:
                panel.axvspan(start, end, color=_SURGE, alpha=0.18, lw=0)
        frame_lightly(panels)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=110, metadata=metadata)
        plt.close(figure)
    return True


def _demand(panel: Any, timeline: Timeline) -> None:
    rates = [s.arrival_rate_per_second for s in timeline.samples]
    panel.plot(_minutes(timeline), _with_gaps(rates), color=_ARRIVALS)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("requests/s")
    what = "A trace" if timeline.surge is None else "A surge"
    panel.set_title(f"{what}, as `make demo` records it (simulated engines)", loc="left")


def _latency(panel: Any, timeline: Timeline) -> None:
    values = _with_gaps([s.ttft_p99_seconds for s in timeline.samples])
    panel.plot(_minutes(timeline), values, color=_LATENCY, label="time to first token, p99 of 30 s")
    objective = timeline.objective("ttft")
    if objective is not None:
        panel.axhline(objective.threshold_seconds, color="black", lw=0.9, ls=":", label="objective")
    panel.set_ylim(bottom=0)
    panel.set_ylabel("seconds")
    panel.legend(frameon=False, loc="upper right", ncols=2)


def _replicas(panel: Any, timeline: Timeline) -> None:
    minutes, samples = _minutes(timeline), timeline.samples
    desired = [s.desired_replicas for s in samples]
    panel.step(minutes, desired, where="post", color=_DESIRED, lw=2, label="ordered")
    ready = [s.ready_replicas for s in samples]
    panel.step(minutes, ready, where="post", color=_READY, ls="--", label="ready")
    top = max(desired, default=1)
    panel.set_ylim(0, top * 1.75)
    panel.set_ylabel("replicas")
    panel.set_xlabel("minutes")
    panel.legend(frameon=False, loc="lower right", ncols=2)
    for index, (at, words) in enumerate(milestones(timeline)):
        x = at / SECONDS_PER_MINUTE
        panel.axvline(x, color="#6c757d", lw=0.8)
        height = top * (1.6 - 0.14 * (index % 3))
        panel.annotate(f" {words}", (x, height), fontsize=9, va="center")


def _minutes(timeline: Timeline) -> list[float]:
    return [s.elapsed_seconds / SECONDS_PER_MINUTE for s in timeline.samples]


def _with_gaps(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _rounded(sample: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in sample.items()}


def main(arguments: Sequence[str]) -> int:
    """Draw a recording (first argument) into a picture (second); returns the exit status."""
    recording, picture = map(Path, arguments)
    return 0 if draw(loads(recording.read_text(encoding="utf-8")), picture) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
