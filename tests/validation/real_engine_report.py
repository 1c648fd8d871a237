# ruff: noqa: T201 - prints what a command found
"""What a run of `real_engine_loop` shows: counts, drained pods, predictions, law, and a picture."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.validation.engine_requests import Served, read_served

from servingslo.cli.decision_document import last_document
from servingslo.units import parse_duration_seconds
from servingslo_lab.cli.backtesting.charts import Axis, Series, line_chart

PICTURE = "picture.html"
WANTED = (1, 2, 1)
# Percentiles of a phase are of what began after the one before was forgotten.
_SETTLING_SECONDS = 20.0
_BLUE, _GREEN, _ORANGE, _GREY = "#1d4ed8", "#16a34a", "#d97706", "#4b5563"


def report(folder: Path) -> int:
    """Print what a finished run shows; 0 where the count went 1, 2, 1 and no request failed."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    lines = (folder / "requests.csv").read_text(encoding="utf-8").splitlines()
    served = read_served(lines)
    print("\n".join(_head(run)))
    print("\n".join(_counts(run)))
    print("\n".join(_pods(run)))
    print("\n".join(_phases(run, served)))
    print("\n".join(_law(run)))
    (folder / PICTURE).write_text(picture(run, served), encoding="utf-8")
    print(f"picture: {folder / PICTURE}")
    counts = course(run["samples"])
    failed = sum(one.latency_seconds is None for one in served)
    broken = sum(pod["broken"] for pod in run["pods"])
    # Every count between may be one more: what matters is one, several, and one again.
    shown = counts[:1] == [1] and counts[-1:] == [1] and max(counts) > 1
    good = shown and not failed and not broken and not run["aborted"]
    print(
        f"counts {' -> '.join(map(str, counts))}; {len(served)} requests, {failed} failed, "
        f"{broken} broken off, {run['aborted'] or 0:.0f} aborted by engines"
    )
    return 0 if good else 1


def course(samples: Sequence[Mapping[str, Any]]) -> list[int]:
    """The counts that were asked for one after the other."""
    found: list[int] = []
    for sample in samples:
        if not found or found[-1] != sample["replicas"]:
            found.append(sample["replicas"])
    return found


def _head(run: Mapping[str, Any]) -> Iterator[str]:
    measured = run["measured"]
    loads = [sample["load_average"] for sample in run["samples"]]
    ran = sum(sample["core_ran_seconds"] for sample in run["samples"])
    waited = sum(sample["core_waited_seconds"] for sample in run["samples"])
    yield f"each engine held to {run['core_share']:g} of a core; arguments: " + " ".join(
        word for word in run["arguments"] if word.startswith("--")
    )
    yield (
        f"load average {min(loads):.1f} to {max(loads):.1f}; engines waited for a core for "
        f"{waited / max(ran + waited, 1e-9):.0%} of the time in which they could have run"
    )
    yield (
        f"one engine: alone TTFT p95 {measured['ttft_seconds']:.2f} s, TPOT "
        f"{measured['tpot_seconds']:.3f} s; saturation {measured['saturation_per_second']:.2f}/s; "
        f"objectives {json.dumps(run['objectives'])}"
    )


def _counts(run: Mapping[str, Any]) -> Iterator[str]:
    yield "\nseconds  asked ready  why"
    before: tuple[int, int] | None = None
    for sample in run["samples"]:
        now = (sample["replicas"], sample["ready"])
        if now != before:
            decision = last_document(sample["status"]) or {}
            why = f"{decision.get('reason', '')} {decision.get('detail') or ''}"
            yield f"{sample['seconds']:7.0f}  {now[0]:5} {now[1]:5}  {why.strip()}"
        before = now


def _pods(run: Mapping[str, Any]) -> Iterator[str]:
    yield "\npod: started, /health answered, deleted, SIGTERM, ended (s)"
    for pod in run["pods"]:
        moments = [pod[key] for key in ("started", "ready", "deleted", "terminated", "ended")]
        told = ", ".join("-" if one is None else f"{one:.0f}" for one in moments)
        drained = (
            ""
            if pod["terminated"] is None
            else f"; {pod['drained']} in flight at SIGTERM, exit status {pod['exit_status']}"
        )
        yield f"{pod['name']}: {told}; {pod['served']} served, {pod['broken']} broken{drained}"


def _phases(run: Mapping[str, Any], served: Sequence[Served]) -> Iterator[str]:
    """By phase: what clients saw, what the operator observed, and what it predicted."""
    yield (
        "\nrate/s  metric  clients p50    p95 | operator: observed p95, predicted p95 "
        "(median of looks), objective, s"
    )
    length = run["phase_seconds"]
    for phase, rate in enumerate(run["rates_per_second"]):
        begin, end = phase * length + _SETTLING_SECONDS, (phase + 1) * length
        chosen = [s for s in served if s.phase == phase and s.arrival_seconds >= begin]
        looks = [s for s in run["samples"] if begin <= s["seconds"] < end]
        for place, metric in enumerate(("ttft", "tpot")):
            values = [
                value for one in chosen if (value := getattr(one, f"{metric}_seconds")) is not None
            ]
            p50, p95 = np.percentile(values, (50, 95)) if values else (np.nan, np.nan)
            seen, told = (
                _median([_objective(look, place).get(key) for look in looks])
                for key in ("observedSeconds", "predictedSeconds")
            )
            threshold = _threshold(run, place)
            head = f"{rate:6.2f}" if place == 0 else " " * 6
            yield (
                f"{head}  {metric:6}  {p50:11.3f} {p95:6.3f} | "
                f"{_number(seen)}, {_number(told)}, {_number(threshold)}"
            )


def _law(run: Mapping[str, Any]) -> Iterator[str]:
    yield "\nlaw and limits at the end of each phase"
    for phase in range(len(run["rates_per_second"])):
        end = (phase + 1) * run["phase_seconds"]
        inside = [s for s in run["samples"] if s["seconds"] < end]
        model = _model(inside[-1]["status"]) if inside else {}
        conditions = (inside[-1]["status"].get("conditions") or []) if inside else []
        trusted = next((c["reason"] for c in conditions if c["type"] == "ModelTrusted"), "-")
        yield (
            f"a {_milliseconds(model.get('stepFixedSeconds'))} ms, "
            f"b {_milliseconds(model.get('stepPerSequenceSeconds'))} ms, "
            f"c {_milliseconds(model.get('prefillPerTokenSeconds'))} ms; error out of sample "
            f"{_number(model.get('fitError'))}, {model.get('samples', 0)} samples, "
            f"{model.get('source', '-')} ({trusted}), calibration "
            f"{_number(model.get('relativeError'))}; {model.get('maxNumSeqs')} sequences "
            f"({model.get('maxNumSeqsSource', '-')}), {model.get('maxNumBatchedTokens')} tokens "
            f"({model.get('maxNumBatchedTokensSource', '-')}), runtime {model.get('runtime')} "
            f"({model.get('runtimeSource', '-')})"
        )


def picture(run: Mapping[str, Any], served: Sequence[Served]) -> str:
    """Counts, arrivals, and both objectives over the run, as one page."""
    samples = run["samples"]
    x = [sample["seconds"] for sample in samples]
    end = x[-1] if x else 1.0

    def chart(title: str, series: Sequence[Series], axis: Axis) -> str:
        names = ", ".join(f'<b style="color:{one.color}">{one.name}</b>' for one in series)
        drawn = line_chart(series, axis, x_label="seconds", x_max=end)
        return f"<p>{title}: {names}</p>{drawn}"

    counts = [
        Series(name="asked for", x=x, y=[s["replicas"] for s in samples], color=_BLUE,
               stepped=True),
        Series(name="Ready", x=x, y=[s["ready"] for s in samples], color=_GREEN, stepped=True),
    ]  # fmt: skip
    rates = [
        Series(name="sent", x=_edges(run), y=_steps(run), color=_GREY, stepped=True),
        Series(
            name="seen by the operator", x=x,
            y=[(s["status"].get("observed") or {}).get("arrivalsPerSecond") for s in samples],
            color=_BLUE,
        ),
    ]  # fmt: skip
    parts = [
        chart("replicas", counts, Axis(label="replicas")),
        chart("arrivals", rates, Axis(label="per second")),
    ]
    for place, metric in enumerate(("ttft", "tpot")):
        found = [_objective(sample, place) for sample in samples]
        threshold = _threshold(run, place)
        lines = [
            Series(name="observed p95", x=x, y=[one.get("observedSeconds") for one in found],
                   color=_BLUE),
            Series(name="predicted p95 for the count decided", x=x,
                   y=[one.get("predictedSeconds") for one in found], color=_ORANGE, dashed=True),
        ]  # fmt: skip
        parts.append(chart(metric.upper(), lines, Axis(label="seconds", threshold=threshold)))
    failed = sum(one.latency_seconds is None for one in served)
    return (
        '<!doctype html><meta charset="utf-8"><title>Real engines</title>'
        '<body style="font: 15px system-ui; max-width: 1020px; margin: 2rem auto">'
        f"<h1>Real vLLM engines, scaled</h1><p>{len(served)} requests, {failed} failed.</p>"
        + "".join(parts)
    )


def _edges(run: Mapping[str, Any]) -> list[float]:
    return [phase * run["phase_seconds"] for phase in range(len(run["rates_per_second"]) + 1)]


def _steps(run: Mapping[str, Any]) -> list[float]:
    return [*run["rates_per_second"], 0.0]


def _objective(sample: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    """What the status said of one objective; empty while it said nothing."""
    found = (sample["status"].get("observed") or {}).get("objectives") or ()
    one: Mapping[str, Any] = found[place] if place < len(found) else {}
    return one


def _threshold(run: Mapping[str, Any], place: int) -> float | None:
    """The threshold of one objective of the run, seconds; None where it has none."""
    stated = run["objectives"]
    return parse_duration_seconds(stated[place]["threshold"]) if place < len(stated) else None


def _model(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The law, its errors, the limits and the runtime of the last decision."""
    document = last_document(status) or {}
    model, runtime = document.get("model") or {}, document.get("runtime") or {}
    return {
        **(model.get("law") or {}),
        **(document.get("limits") or {}),
        **{name: model.get(name) for name in ("fitError", "relativeError")},
        "samples": model.get("sampleCount", 0),
        "source": model.get("source", "-"),
        "runtime": runtime.get("name"),
        "runtimeSource": runtime.get("source", "-"),
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:.2f}"
