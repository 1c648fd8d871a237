"""Commands of a build: logged to a file, without addresses of proxies, and cancelled together."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from servingslo_lab.errors import RigError

_TAIL_LINES = 20
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"']+", re.IGNORECASE)
_ADDRESS_VARIABLES = (
    "GOPROXY",
    "GOSUMDB",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
)


class CommandRunner:
    """Runs commands that can all be cancelled at once.

    environment: variables of the commands on top of this program's own.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._cancelled = False

    def run(
        self,
        what: str,
        command: Sequence[str],
        *,
        log_path: Path,
        timeout_seconds: float,
        working_directory: Path | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> list[str]:
        """The lines a command prints on either stream, addresses removed.

        what: the tool that the command is for, used in messages.
        Raises: RigError with the end of the log when it fails, takes too long or is cancelled.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        process = self._start(what, command, working_directory)
        timer = threading.Timer(timeout_seconds, process.kill)
        timer.start()
        try:
            with log_path.open("a", encoding="utf-8") as log:
                for raw_line in process.stdout or ():
                    line = without_addresses(raw_line.rstrip())
                    lines.append(line)
                    log.write(line + "\n")
                    if on_line is not None:
                        on_line(line)
        finally:
            timer.cancel()
            if sys.exc_info()[0] is not None:  # Ctrl-C: its output is no longer read
                process.kill()
            status = process.wait()
            with self._lock:
                self._running.discard(process)
        if status != 0:
            tail = "\n".join(lines[-_TAIL_LINES:])
            raise RigError(
                f"{what}: `{without_addresses(' '.join(command))}` ended with status {status}; "
                f"end of {log_path}:\n{tail}"
            )
        return lines

    def cancel(self) -> None:
        """Kill running commands, and refuse new ones."""
        with self._lock:
            self._cancelled = True
            for process in self._running:
                process.kill()

    def _start(
        self,
        what: str,
        command: Sequence[str],
        working_directory: Path | None,
    ) -> subprocess.Popen[str]:
        with self._lock:
            if self._cancelled:
                raise RigError(f"{what}: cancelled")
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    cwd=working_directory,
                    env={**os.environ, **self._environment},
                )
            except OSError as error:
                raise RigError(f"{what}: cannot run {command[0]}: {error}") from error
            self._running.add(process)
        return process


def without_addresses(line: str) -> str:
    """The line without URLs and without host names of configured proxies and indexes.

    They may contain credentials, which must not be in logs that users share.
    """
    line = _URL.sub("<address>", line)
    for host in _configured_hosts():
        line = line.replace(host, "<address>")
    return line


def _configured_hosts() -> set[str]:
    hosts: set[str] = set()
    for name in _ADDRESS_VARIABLES:
        value = os.environ.get(name, "") or os.environ.get(name.lower(), "")
        for part in re.split(r"[,|\s]+", value):
            host = urlsplit(part).hostname
            if host:
                hosts.add(host)
    return hosts
