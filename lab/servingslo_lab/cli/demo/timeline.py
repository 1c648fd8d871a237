"""What the demo keeps for its view, its summary and its picture."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSample:
    """One look at the running system. elapsed_seconds: since traffic began; None is unknown.

    ttft_p99_seconds: of the requests that got their first token in the last half minute, from the
    engines' own records. predicted_ttft_p99_seconds, binding: from the resource's status.
    """

    elapsed_seconds: float
    arrival_rate_per_second: float | None
    running_requests: float
    waiting_requests: float
    kv_usage_ratio: float | None
    ttft_p99_seconds: float | None
    observed_ttft_seconds: float | None
    predicted_ttft_seconds: float | None
    desired_replicas: int
    ready_replicas: int
    binding: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoObjective:
    """One objective of the demo's resource, in the metric's API name."""

    metric: str
    percentile: float
    threshold_seconds: float


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Everything seen so far; grows while the demo runs. The surge is None in a user's trace."""

    objectives: tuple[DemoObjective, ...]
    surge_start_seconds: float | None
    surge_end_seconds: float | None
    tick_seconds: float
    samples: list[DemoSample] = field(default_factory=list)
    decisions: list[tuple[float, str]] = field(default_factory=list)

    @property
    def surge(self) -> tuple[float, float] | None:
        """Start and end of the surge in seconds, or None."""
        if self.surge_start_seconds is None or self.surge_end_seconds is None:
            return None
        return self.surge_start_seconds, self.surge_end_seconds

    def objective(self, metric: str) -> DemoObjective | None:
        """The first objective on a metric, or None."""
        return next((o for o in self.objectives if o.metric == metric), None)

    def replica_seconds(self) -> float:
        """Replica-seconds ordered so far: the desired count over time."""
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return sum(
            earlier.desired_replicas * (later.elapsed_seconds - earlier.elapsed_seconds)
            for earlier, later in pairs
        )

    def first_scale_up_after(self, elapsed_seconds: float) -> float | None:
        """Seconds from a moment to the first scale-up decided after it, or None."""
        return next(
            (
                at - elapsed_seconds
                for at, line in self.decisions
                if at >= elapsed_seconds and "action=scale-up" in line
            ),
            None,
        )

    def more_ready_after(self, elapsed_seconds: float) -> float | None:
        """Seconds from a moment until more replicas were ready than at that moment, or None."""
        before = [s.ready_replicas for s in self.samples if s.elapsed_seconds <= elapsed_seconds]
        later = (s for s in self.samples if s.elapsed_seconds > elapsed_seconds)
        least = before[-1] if before else 0
        return next(
            (s.elapsed_seconds - elapsed_seconds for s in later if s.ready_replicas > least), None
        )

    def count_decisions(self, action: str) -> int:
        """Decisions in the log with an action."""
        return sum(f"action={action} " in line for _, line in self.decisions)
