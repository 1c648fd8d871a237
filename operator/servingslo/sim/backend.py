"""Who runs the simulator's inner loop: Python, or the same source compiled by numba.

Both give the same results, bit for bit: the compiler keeps the order of floating-point operations.
numba is the optional extra `compiled`; without it everything works, more slowly.
"""

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from servingslo.sim import kernel, layout, queues, routing, runs
from servingslo.sim.layout import EngineRow, Requests

_KERNEL_MODULES = (queues, runs, kernel, routing)
_FLOAT_COLUMNS = frozenset({"arrival", "scheduled", "first_token", "last_token", "finish"})
_FLOAT_PARTS = frozenset({"floats", "edges", "sums"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How memory is laid out and who runs the kernel.

    requests and row turn plain lists into the form the kernel runs on; rows and integers make
    empty sequences of that form.
    """

    name: str
    requests: Callable[[Mapping[str, list[float]]], Requests]
    row: Callable[[EngineRow], EngineRow]
    rows: Callable[[], list[EngineRow]]
    integers: Callable[[list[int]], list[int]]
    serve: Callable[[Requests, list[EngineRow], list[int], list[int], float], None]
    advance: Callable[[Requests, EngineRow, float], None]


INTERPRETED = Backend(
    name="interpreted",
    requests=lambda columns: Requests(**columns),  # type: ignore[arg-type]
    row=lambda row: row,
    rows=list,
    integers=list,
    serve=routing.serve,
    advance=kernel.advance,
)


def compiler_installed() -> bool:
    """Whether the extra `compiled` is there."""
    return importlib.util.find_spec("numba") is not None


def best_backend() -> Backend:
    """The compiled one where it is installed."""
    return compiled_backend() if compiler_installed() else INTERPRETED


@cache
def compiled_backend() -> Backend:
    """The kernel compiled by numba; compiles on first use, which takes some seconds.

    Raises: ImportError when numba is not installed.
    """
    import numba  # noqa: PLC0415 - optional, and slow to import
    from numba.extending import register_jitable  # noqa: PLC0415

    numba.config.CACHE_DIR = str(_cache_directory(numba.__version__))
    for module in _KERNEL_MODULES:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                register_jitable(function)
    serve: Any = numba.njit(cache=True)(routing.serve)
    advance: Any = numba.njit(cache=True)(kernel.advance)
    return Backend(
        name="compiled",
        requests=_request_arrays,
        row=_row_arrays,
        rows=numba.typed.List,
        integers=lambda values: np.array(values, dtype=np.int64),  # type: ignore[arg-type,return-value]
        serve=serve,
        advance=advance,
    )


def _cache_directory(compiler_version: str) -> Path:
    """Where machine code is kept: by all of its sources, of which numba would watch one alone."""
    digest = hashlib.sha256(compiler_version.encode())
    for module in (*_KERNEL_MODULES, layout):
        digest.update(Path(module.__file__ or "").read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "servingslo" / "compiled" / digest.hexdigest()[:16]


def _array(values: Any, *, floating: bool) -> Any:
    return np.array(values, dtype=np.float64 if floating else np.int64)


def _request_arrays(columns: Mapping[str, list[float]]) -> Requests:
    return Requests(
        **{
            name: _array(values, floating=name in _FLOAT_COLUMNS)
            for name, values in columns.items()
        }
    )


def _row_arrays(row: EngineRow) -> EngineRow:
    parts = row._asdict()
    return EngineRow(
        **{name: _array(values, floating=name in _FLOAT_PARTS) for name, values in parts.items()}
    )
