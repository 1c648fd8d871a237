"""Run the simulator's inner loop in Python, or the same source compiled by numba.

Both produce the same results, bit for bit: the compiler keeps the order of floating-point
operations. numba is the optional extra `compiled`; without it everything works, but more slowly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from servingslo.models.engine.service_time import FloatArray
from servingslo_lab.compiling import cache_directory, compiler_installed
from servingslo_lab.sim.replicas import (
    batches,
    clients,
    endings,
    intake,
    kernel,
    layout,
    queues,
    routing,
    runs,
    step_table,
    timers,
)
from servingslo_lab.sim.replicas.clients import Clients
from servingslo_lab.sim.replicas.layout import FLOAT_PARTS, EngineRow, Requests
from servingslo_lab.sim.traces.trace import IntArray

Column = FloatArray | IntArray
_KERNEL_MODULES = (
    layout, queues, runs, step_table, endings, batches, kernel, intake, routing, timers, clients,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The memory layout and the functions of the kernel.

    requests, clients and row convert plain columns to the form that the kernel uses; rows and
    integers create empty sequences of that form.
    """

    name: str
    requests: Callable[[Mapping[str, Column]], Requests]
    row: Callable[[EngineRow], EngineRow]
    rows: Callable[[], list[EngineRow]]
    integers: Callable[[list[int]], list[int]]
    clients: Callable[[Mapping[str, Column]], Clients]
    serve: Callable[[Requests, list[EngineRow], list[int], list[int], float], None]
    serve_clients: Callable[[Requests, Clients, list[EngineRow], list[int], list[int], float], None]
    advance: Callable[[Requests, list[EngineRow], int, float], None]
    lose: Callable[[Requests, Clients | None, list[EngineRow], int, list[int], float], None]


def _lists(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column.tolist() for name, column in columns.items()}


def _lose(
    q: Requests, c: Clients | None, rows: list[EngineRow], place: int, gateway: list[int],
    now: float,
) -> None:  # fmt: skip
    if c is not None:
        clients.lose_engine(q, c, rows[place], gateway, now)
        return
    kernel.advance(q, rows[place], now)
    intake.lose(q, rows[place], now)


INTERPRETED = Backend(
    name="interpreted",
    requests=lambda columns: Requests(**_lists(columns)),
    row=lambda row: row,
    rows=list,
    integers=list,
    clients=lambda columns: Clients(**_lists(columns)),
    serve=routing.serve,
    serve_clients=clients.serve_clients,
    lose=_lose,
    advance=lambda q, rows, place, until: kernel.advance(q, rows[place], until),
)


def best_backend() -> Backend:
    """The compiled backend if numba is installed, else Python's."""
    return compiled_backend() if compiler_installed() else INTERPRETED


@cache
def compiled_backend() -> Backend:
    """The kernel compiled by numba; compiles on first use, which takes some seconds.

    Raises: ImportError if numba is not installed.
    """
    from servingslo_lab.sim.replicas import compiled  # noqa: PLC0415 - optional, and slow to import

    sources = [Path(module.__file__ or "") for module in _KERNEL_MODULES]
    kernels = compiled.compile_kernel(_KERNEL_MODULES, str(cache_directory(sources)))
    return Backend(
        name="compiled",
        requests=lambda columns: Requests(**_arrays(columns)),
        row=_row_arrays,
        rows=compiled.Rows,
        integers=lambda values: np.array(values, dtype=np.int64),  # type: ignore[arg-type,return-value]
        clients=lambda columns: Clients(**_arrays(columns)),
        serve=kernels.serve,
        serve_clients=kernels.serve_clients,
        advance=kernels.advance,
        lose=kernels.lose,
    )


def _arrays(columns: Mapping[str, Any]) -> dict[str, Any]:
    # Copies, because the kernel writes into them and the trace is used again.
    return {name: column.copy() for name, column in columns.items()}


def _row_arrays(row: EngineRow) -> EngineRow:
    parts: dict[str, Any] = {
        name: np.array(values, dtype=np.float64 if name in FLOAT_PARTS else np.int64)
        for name, values in row._asdict().items()
    }
    return EngineRow(**parts)
