"""Processes of the rig: started with a log file each, stopped together, never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from servingslo_lab.errors import RigError
from servingslo_lab.rig.waiting import http_get, wait_until

_REAPER = Path(__file__).parent / "reaper.py"
_LOG_TAIL_LINES = 20
_STOP_TIMEOUT_SECONDS = 10.0


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block, so that every process is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the interpreter interrupts only the main thread
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda caught, _frame: held.append(caught))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for caught in held[:1]:
            signal.raise_signal(caught)


class ProcessFamily:
    """All processes of one rig; a small watcher ends them if this program ends first."""

    def __init__(self, *, work_dir: Path, remove_work_dir: bool) -> None:
        self.log_directory = work_dir / "logs"
        self.log_directory.mkdir(parents=True, exist_ok=True)
        self._members: dict[str, ManagedProcess] = {}
        # A separate session: Ctrl-C in a terminal must reach only this program.
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_REAPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        if remove_work_dir:
            self._tell(f"directory {work_dir}")

    @property
    def members(self) -> Mapping[str, "ManagedProcess"]:
        """Every process added so far by name, running or not."""
        return dict(self._members)

    def add(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
    ) -> "ManagedProcess":
        """A process that is not started yet.

        environment: variables on top of this program's own.
        Raises: RigError when the name is taken by a running process.
        """
        known = self._members.get(name)
        if known is not None and known.running:
            raise RigError(f"{name}: a process of this name is running already")
        process = ManagedProcess(
            name=name,
            command=command,
            environment=environment,
            working_directory=working_directory,
            family=self,
        )
        self._members[name] = process
        return process

    def stop(self) -> None:
        """Kill every process, newest first, and end the watcher. Safe to call twice."""
        for process in reversed(self._members.values()):
            process.stop(kill=True)
        if self._reaper.poll() is None and self._reaper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._reaper.stdin.close()
            self._reaper.wait()

    def started(self, pid: int) -> None:
        """Tell the watcher about a new process group."""
        self._tell(f"+{pid}")

    def ended(self, pid: int) -> None:
        """Tell the watcher that a process group is gone."""
        self._tell(f"-{pid}")

    def _tell(self, line: str) -> None:
        if self._reaper.stdin is None or self._reaper.poll() is not None:
            return
        self._reaper.stdin.write(line + "\n")
        self._reaper.stdin.flush()


class ManagedProcess:
    """One process in its own process group, with its output in a log file."""

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        working_directory: Path | None,
        family: ProcessFamily,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log_path = family.log_directory / f"{name}.log"
        self._environment = environment
        self._working_directory = working_directory
        self._family = family
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended; a paused one is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id while it runs, otherwise None."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs or before it started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process; its output is appended to the log file.

        Raises: RigError when it runs already or cannot be executed.
        """
        if self.running:
            raise RigError(f"{self.name}: already running")
        with self.log_path.open("ab") as log, uninterrupted():
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(self._environment or {})},
                    cwd=self._working_directory,
                    start_new_session=True,
                )
            except OSError as error:
                raise RigError(f"{self.name}: cannot run {self.command[0]}: {error}") from error
            self._family.started(self._process.pid)

    def stop(self, *, kill: bool = False, timeout_seconds: float = _STOP_TIMEOUT_SECONDS) -> None:
        """End the process and wait for it: SIGTERM first, SIGKILL at once when ``kill``.

        A process that ignores SIGTERM for timeout_seconds is killed. Safe to call twice.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None and not kill:
            self.resume()  # a paused process would never see SIGTERM
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_seconds)
        if process.poll() is None:
            self._signal(signal.SIGKILL)
            process.wait()
        self._family.ended(process.pid)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open and nothing answers.

        Raises: RigError when it is not running.
        """
        pid = self.pid
        if pid is None:
            raise RigError(f"{self.name}: not running")
        self._signal(signal.SIGSTOP)
        # Threads on other cores may continue for a moment; the kernel reports the last stop.
        wait_until(
            lambda: os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None,
            what=f"{self.name} is paused",
            interval_seconds=0.005,
        )

    def resume(self) -> None:
        """Resume a paused process."""
        self._signal(signal.SIGCONT)

    def log_tail(self, *, line_count: int = _LOG_TAIL_LINES) -> str:
        """The last lines of the log file; empty when there is none."""
        if not self.log_path.exists():
            return ""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-line_count:])

    def wait_ready(self, url: str, *, timeout_seconds: float = 30.0) -> None:
        """Wait until ``url`` answers 200. Raises: RigError with the end of the log otherwise."""
        self.wait_for(
            lambda: http_get(url) is not None, what="ready", timeout_seconds=timeout_seconds
        )

    def wait_for(
        self, check: Callable[[], bool], *, what: str, timeout_seconds: float = 30.0
    ) -> None:
        """Wait until ``check()`` is true while the process lives.

        Raises: RigError, with the end of the log, when it ends or the time is up.
        """

        def done() -> bool:
            if not self.running:
                raise RigError(f"ended with status {self.exit_status}")
            return check()

        try:
            wait_until(done, what=what, timeout_seconds=timeout_seconds)
        except RigError as error:
            raise RigError(
                f"{self.name}: {error}\ncommand: {' '.join(self.command)}\n"
                f"end of {self.log_path}:\n{self.log_tail()}"
            ) from error

    def _signal(self, number: signal.Signals) -> None:
        # The process has its own session, so the signal to the group also reaches its children.
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
