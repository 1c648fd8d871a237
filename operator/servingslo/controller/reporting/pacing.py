"""Writes for which no caller waits: urgent ones at once, those that only drifted spread out."""

import asyncio
from dataclasses import dataclass, field

# Drifted values are spread over this share of a tick, so that they are done before more come.
_SPREAD_RATIO = 0.8
# If there are few, none is held back longer than this.
_LONGEST_PAUSE_SECONDS = 0.25


@dataclass(slots=True)
class PacedQueue:
    """Keys, each at most once: urgent ones first and without a pause.

    span_seconds: of a tick. The others are taken with pauses that spread them over most of the
    tick.
    """

    span_seconds: float
    _urgent: dict[str, None] = field(default_factory=dict)
    _calm: dict[str, None] = field(default_factory=dict)
    _most: int = 0
    _filled: asyncio.Event = field(default_factory=asyncio.Event)
    _hurried: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._calm)

    def put(self, key: str, *, urgent: bool) -> None:
        """Queue a key. A key that is already queued can only become urgent."""
        if urgent:
            self._calm.pop(key, None)
            self._urgent[key] = None
            self._hurried.set()
        elif key not in self._urgent:
            self._calm[key] = None
            self._most = max(self._most, len(self._calm))
        self._filled.set()

    def take_urgent(self) -> str | None:
        """The next urgent key; None if there is none."""
        if not self._urgent:
            return None
        key = next(iter(self._urgent))
        del self._urgent[key]
        return key

    async def take(self) -> str:
        """The next key, when it is its turn."""
        while True:
            if (key := self.take_urgent()) is not None:
                return key
            self._hurried.clear()
            if not self._calm:
                self._most = 0
                self._filled.clear()
                await self._filled.wait()
            elif not await self._hurried_within(self._pause_seconds()) and self._calm:
                key = next(iter(self._calm))
                del self._calm[key]
                return key

    def _pause_seconds(self) -> float:
        return min(_SPREAD_RATIO * self.span_seconds / self._most, _LONGEST_PAUSE_SECONDS)

    async def _hurried_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        except TimeoutError:
            return False
        return True
