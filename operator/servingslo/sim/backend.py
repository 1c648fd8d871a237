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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from servingslo.models.service_time import FloatArray
from servingslo.sim import kernel, layout, queues, routing, runs
from servingslo.sim.layout import FLOAT_PARTS, EngineRow, Requests
from servingslo.sim.trace import IntArray

Column = FloatArray | IntArray
_KERNEL_MODULES = (queues, runs, kernel, routing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How memory is laid out and who runs the kernel.

    requests and row turn plain lists into the form the kernel runs on; rows and integers make
    empty sequences of that form.
    """

    name: str
    requests: Callable[[Mapping[str, Column]], Requests]
    row: Callable[[EngineRow], EngineRow]
    rows: Callable[[], list[EngineRow]]
    integers: Callable[[list[int]], list[int]]
    serve: Callable[[Requests, list[EngineRow], list[int], list[int], float], None]
    advance: Callable[[Requests, list[EngineRow], int, float], None]


def _request_lists(columns: Mapping[str, Any]) -> Requests:
    return Requests(**{name: column.tolist() for name, column in columns.items()})


INTERPRETED = Backend(
    name="interpreted",
    requests=_request_lists,
    row=lambda row: row,
    rows=list,
    integers=list,
    serve=routing.serve,
    advance=lambda q, rows, place, until: kernel.advance(q, rows[place], until),
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
    from servingslo.sim import compiled  # noqa: PLC0415 - optional, and slow to import

    serve, advance = compiled.compile_kernel(_KERNEL_MODULES, str(_cache_directory()))
    return Backend(
        name="compiled",
        requests=_request_arrays,
        row=_row_arrays,
        rows=compiled.Rows,
        integers=lambda values: np.array(values, dtype=np.int64),  # type: ignore[arg-type,return-value]
        serve=serve,
        advance=advance,
    )


def _cache_directory() -> Path:
    """Where machine code is kept: by all of its sources, of which numba would watch one alone."""
    digest = hashlib.sha256(version("numba").encode())
    for module in (*_KERNEL_MODULES, layout):
        digest.update(Path(module.__file__ or "").read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "servingslo" / "compiled" / digest.hexdigest()[:16]


def _request_arrays(columns: Mapping[str, Any]) -> Requests:
    # Copies: the kernel writes into them, and the trace is used again.
    return Requests(**{name: column.copy() for name, column in columns.items()})


def _row_arrays(row: EngineRow) -> EngineRow:
    parts: dict[str, Any] = {
        name: np.array(values, dtype=np.float64 if name in FLOAT_PARTS else np.int64)
        for name, values in row._asdict().items()
    }
    return EngineRow(**parts)
