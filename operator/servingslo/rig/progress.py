"""Progress of a build: live bars on a terminal, plain lines in a pipe."""

import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_LINE_INTERVAL_SECONDS = 30.0


class BuildProgress(Protocol):
    """What a build reports; called from several threads."""

    def begin(self, label: str) -> None:
        """The build of ``label`` starts: modules are being fetched."""

    def expect(self, label: str, package_count: int) -> None:
        """The program consists of this many packages."""

    def advance(self, label: str) -> None:
        """One more package was compiled."""

    def finish(self, label: str, elapsed_seconds: float) -> None:
        """The program is ready."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def make_progress(labels: Sequence[str]) -> BuildProgress:
    """Bars when standard error is a terminal, lines otherwise."""
    console = Console(stderr=True)
    return _Bars(labels, console) if console.is_terminal else _Lines(labels)


class _Bars:
    def __init__(self, labels: Sequence[str], console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks = {
            label: self._progress.add_task(label, total=None, start=False, state="waiting")
            for label in labels
        }

    def begin(self, label: str) -> None:
        self._progress.start_task(self._tasks[label])
        self._progress.update(self._tasks[label], state="fetching modules")

    def expect(self, label: str, package_count: int) -> None:
        self._progress.update(self._tasks[label], total=package_count, state="compiling")

    def advance(self, label: str) -> None:
        self._progress.advance(self._tasks[label])

    def finish(self, label: str, elapsed_seconds: float) -> None:  # noqa: ARG002 - shown by its column
        self._progress.update(self._tasks[label], total=1, completed=1, state="ready")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()


class _Lines:
    """One line when a build starts and ends, and one every half minute in between."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._compiled = dict.fromkeys(labels, 0)
        self._expected = dict.fromkeys(labels, 0)
        self._last_line_seconds = time.monotonic()

    def begin(self, label: str) -> None:
        self._print(f"rig: {label}: fetching modules")

    def expect(self, label: str, package_count: int) -> None:
        self._expected[label] = package_count
        self._print(f"rig: {label}: compiling up to {package_count} packages")

    def advance(self, label: str) -> None:
        with self._lock:
            self._compiled[label] += 1
            due = time.monotonic() - self._last_line_seconds > _LINE_INTERVAL_SECONDS
        if due:
            self._print(
                f"rig: {label}: compiled {self._compiled[label]} of {self._expected[label]}"
            )

    def finish(self, label: str, elapsed_seconds: float) -> None:
        self._print(f"rig: {label}: ready after {elapsed_seconds:.0f} s")

    def _print(self, line: str) -> None:
        with self._lock:
            self._last_line_seconds = time.monotonic()
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is the program's output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass
