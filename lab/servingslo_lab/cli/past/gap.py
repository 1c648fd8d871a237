"""What could not be read of the past."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time that could not be read, and why."""

    start_seconds: int
    end_seconds: int
    reason: str

    @property
    def seconds(self) -> int:
        """Its length."""
        return self.end_seconds - self.start_seconds
