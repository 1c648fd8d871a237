"""The kernel compiled by numba, on plain pointers.

The kernel passes the columns of requests and engines from function to function. As numba arrays
they are reference-counted at every step, which costs many times the kernel's own work. As pointers
they are plain numbers. The caller keeps the arrays behind them alive.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic, register_jitable

from servingslo_lab.sim.replicas import clients, intake, kernel, routing
from servingslo_lab.sim.replicas.clients import CLIENT_FLOATS, Clients
from servingslo_lab.sim.replicas.layout import FLOAT_COLUMNS, FLOAT_PARTS, EngineRow, Requests

_ROW_BYTES = 8 * len(EngineRow._fields)


class Rows(list[EngineRow]):
    """Engines in arrays, with their memory addresses: one line of addresses for each.

    The tables of their requests and clients are looked up only once: a fleet has one of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: Any = np.zeros((8, len(EngineRow._fields)), dtype=np.int64)
        self._tables: dict[int, tuple[Any, Any]] = {}

    def append(self, row: EngineRow) -> None:
        """Add an engine; its arrays must not move in memory."""
        place = len(self)
        if place == len(self._lines):
            self._lines = np.concatenate([self._lines, np.zeros_like(self._lines)])
        self._lines[place] = _addresses(row)
        super().append(row)

    def address(self, place: int) -> int:
        """Address of the line of this engine."""
        return int(self._lines.ctypes.data) + place * _ROW_BYTES

    def table(self, table: Requests | Clients) -> int:
        """Address of the line of this table."""
        found = self._tables.get(id(table))
        if found is None:  # the table is kept, so that its id stays its own
            found = self._tables[id(table)] = table, _addresses(table)
        return int(found[1].ctypes.data)


def _addresses(table: Any) -> Any:
    return np.array([column.ctypes.data for column in table], dtype=np.int64)


def _table_pointer(kind: Any, floating: frozenset[str]) -> Any:
    """A compiled function that returns the pointers of a table at an address."""
    columns = [
        numba.types.CPointer(numba.types.float64 if name in floating else numba.types.int64)
        for name in kind._fields
    ]
    pointer = numba.types.CPointer(numba.types.NamedTuple(columns, kind))

    @intrinsic  # type: ignore[untyped-decorator]
    def at(_typing: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(address), build

    return at


_requests_at = _table_pointer(Requests, FLOAT_COLUMNS)
_clients_at = _table_pointer(Clients, CLIENT_FLOATS)
_rows_at = _table_pointer(EngineRow, FLOAT_PARTS)


def _serve(requests: int, rows: int, serving: Any, gateway: Any, until: float) -> None:
    routing.serve(_requests_at(requests)[0], _rows_at(rows), serving, gateway, until)


def _serve_clients(
    requests: int, table: int, rows: int, serving: Any, gateway: Any, until: float
) -> None:
    q, c = _requests_at(requests)[0], _clients_at(table)[0]
    clients.serve_clients(q, c, _rows_at(rows), serving, gateway, until)


def _advance(requests: int, row: int, until: float) -> None:
    kernel.advance(_requests_at(requests)[0], _rows_at(row)[0], until)


def _lose(requests: int, row: int, now: float) -> None:
    q, one = _requests_at(requests)[0], _rows_at(row)[0]
    kernel.advance(q, one, now)
    intake.lose(q, one, now)


def _lose_clients(requests: int, table: int, row: int, gateway: Any, now: float) -> None:
    q, c = _requests_at(requests)[0], _clients_at(table)[0]
    clients.lose_engine(q, c, _rows_at(row)[0], gateway, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions for `Backend`, compiled on first use."""

    serve: Callable[..., None]
    serve_clients: Callable[..., None]
    advance: Callable[..., None]
    lose: Callable[..., None]


def compile_kernel(modules: Iterable[ModuleType], cache_directory: str) -> Kernels:
    """The functions of these modules, compiled on first use."""
    numba.config.CACHE_DIR = cache_directory
    for module in modules:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                register_jitable(function)
    entries = (_serve, _serve_clients, _advance, _lose, _lose_clients)
    serve_, serve_clients_, advance_, lose_, lose_clients_ = (
        numba.njit(cache=True)(entry) for entry in entries
    )

    def serve(q: Requests, rows: Rows, serving: Any, gateway: Any, until: float) -> None:
        serve_(rows.table(q), rows.address(0), serving, gateway, until)

    def serve_clients(
        q: Requests, c: Clients, rows: Rows, serving: Any, gateway: Any, until: float
    ) -> None:
        serve_clients_(rows.table(q), rows.table(c), rows.address(0), serving, gateway, until)

    def advance(q: Requests, rows: Rows, place: int, until: float) -> None:
        advance_(rows.table(q), rows.address(place), until)

    def lose(
        q: Requests, c: Clients | None, rows: Rows, place: int, gateway: Any, now: float
    ) -> None:
        if c is None:
            lose_(rows.table(q), rows.address(place), now)
        else:
            lose_clients_(rows.table(q), rows.table(c), rows.address(place), gateway, now)

    return Kernels(serve=serve, serve_clients=serve_clients, advance=advance, lose=lose)
