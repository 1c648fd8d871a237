"""What became of each request to a real engine, and its file."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request as its client saw it; times in seconds from the start of the load.

    ttft_seconds, latency_seconds: None where it failed. phase: number of the load's phase.
    """

    arrival_seconds: float
    phase: int
    prompt_tokens: int
    output_tokens: int
    ttft_seconds: float | None
    latency_seconds: float | None

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time of an output token after the first; None for a single token."""
        if self.ttft_seconds is None or self.latency_seconds is None or self.output_tokens < 2:
            return None
        return (self.latency_seconds - self.ttft_seconds) / (self.output_tokens - 1)


def write_served(served: Sequence[Served], path: Path) -> None:
    """One line of CSV for each request."""
    names = [field.name for field in fields(Served)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for one in served:
            values = [getattr(one, name) for name in names]
            writer.writerow([f"{v:.4f}" if isinstance(v, float) else v for v in values])


def read_served(lines: Iterable[str]) -> list[Served]:
    """What `write_served` wrote."""
    return [
        Served(
            arrival_seconds=float(row["arrival_seconds"]),
            phase=int(row["phase"]),
            prompt_tokens=int(row["prompt_tokens"]),
            output_tokens=int(row["output_tokens"]),
            ttft_seconds=float(row["ttft_seconds"]) if row["ttft_seconds"] else None,
            latency_seconds=float(row["latency_seconds"]) if row["latency_seconds"] else None,
        )
        for row in csv.DictReader(lines)
    ]
