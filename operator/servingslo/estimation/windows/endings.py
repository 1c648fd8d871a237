"""How requests end that get no whole answer, as engines count them.

Some engines count them among the finished ones, by reason, others apart.
"""

from typing import NamedTuple

from servingslo.estimation.sample import EngineSample

# Reasons among the finished requests. Source: vllm/v1/engine/__init__.py, FinishReason.
ABORTED, FAILED = "abort", "error"


class Endings(NamedTuple):
    """Requests without a whole answer, a count or a rate; None if they are not counted.

    failed: by an error or a timeout. aborted: client or server left.
    """

    failed: float | None = None
    aborted: float | None = None

    def over(self, seconds: float) -> "Endings":
        """Return the counts of a window as rates per second."""
        return Endings(
            None if self.failed is None else self.failed / seconds,
            None if self.aborted is None else self.aborted / seconds,
        )


NOT_COUNTED = Endings()


def endings_between(before: EngineSample, after: EngineSample) -> Endings:
    """Return what ended between two samples of one engine; a counter that fell has restarted."""
    return Endings(
        failed=_increase(_failed(before), _failed(after)),
        aborted=_increase(_aborted(before), _aborted(after)),
    )


def _failed(sample: EngineSample) -> float | None:
    apart = sample.failed_total
    return sample.finished_total.get(FAILED) if apart is None else apart


def _aborted(sample: EngineSample) -> float | None:
    apart = sample.aborted_total
    return sample.finished_total.get(ABORTED) if apart is None else apart


def _increase(before: float | None, after: float | None) -> float | None:
    """Return the increase; a counter often appears with its first event."""
    if after is None:
        return None
    return after - (before or 0.0) if after >= (before or 0.0) else after
