"""Progress of a build on one line: parts and packages done of all, and the current parts."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TextIO

from servingslo_lab.rig.programs.build_sizes import packages_of

# Longest time between two lines without a terminal.
LONGEST_SILENCE_SECONDS = 120.0
# A terminal's line is written no more often than this.
_REDRAW_SECONDS = 0.5
_CLEAR_LINE = "\r\x1b[K"


class BuildProgress:
    """The progress report of a build, called from several threads.

    On a terminal one line is overwritten. Elsewhere there is a line when a part begins or is ready,
    and one every two minutes in between.
    labels: of the parts to build, each beginning with its name. found: number of existing parts.
    """

    def __init__(
        self,
        labels: Sequence[str],
        *,
        found: int = 0,
        stream: TextIO | None = None,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._now = now_seconds
        self._lock = threading.Lock()
        self._waiting = {label: packages_of(label) for label in labels}
        self._packages = sum(self._waiting.values())
        self._working: dict[str, str] = {}
        self._compiled = dict.fromkeys(labels, 0)
        self._all = found + len(labels)
        self._written = now_seconds()

    def begin(self, label: str) -> None:
        """The build of ``label`` starts with the download of modules."""
        with self._lock:
            self._working[label] = "fetching"
            self._write()

    def advance(self, label: str) -> None:
        """One more package was compiled."""
        with self._lock:
            self._working[label] = "compiling"
            self._compiled[label] = min(self._compiled[label] + 1, self._waiting[label])
            pause = _REDRAW_SECONDS if self._stream.isatty() else LONGEST_SILENCE_SECONDS
            if self._now() - self._written >= pause:
                self._write()

    def finish(self, label: str) -> None:
        """The part is ready."""
        with self._lock:
            self._compiled[label] = self._waiting.pop(label)
            self._working.pop(label, None)
            self._write()

    def say(self, text: str) -> None:
        """Write a line of somebody else, above the progress."""
        with self._lock:
            on_terminal = self._stream.isatty()
            self._stream.write(f"{_CLEAR_LINE if on_terminal else ''}{text}\n")
            if on_terminal:
                self._write()
            self._stream.flush()

    def line(self) -> str:
        """The current line."""
        text = f"rig: {self._all - len(self._waiting)} of {self._all} built"
        if not self._waiting:
            return text
        if self._packages:
            text += f", {100 * sum(self._compiled.values()) // self._packages} % of the packages"
        if self._working:
            text += f" ({', '.join(f'{label}: {what}' for label, what in self._working.items())})"
        return text

    def _write(self) -> None:
        self._written = self._now()
        line = self.line()
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_CLEAR_LINE + line[:width])
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream.isatty():
            self._stream.write("\n")
            self._stream.flush()
