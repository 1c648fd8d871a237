"""The kernel compiled by numba, on plain pointers.

The kernel passes the columns of requests and engines from function to function. As numba arrays
they are counted at every step, which costs many times what the kernel itself does; as pointers
they are numbers. The arrays they point into are kept alive by whoever calls.
"""

from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic, register_jitable

from servingslo.sim import kernel, routing
from servingslo.sim.layout import FLOAT_COLUMNS, FLOAT_PARTS, EngineRow, Requests

_ROW_BYTES = 8 * len(EngineRow._fields)


class Rows(list[EngineRow]):
    """Engines in arrays, and where these lie: one line of addresses for each.

    The requests that they serve are looked up once: a fleet has one table.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: Any = np.zeros((8, len(EngineRow._fields)), dtype=np.int64)
        self._requests: Requests | None = None
        self._columns: Any = None

    def append(self, row: EngineRow) -> None:
        """Add an engine; its arrays must stay where they are."""
        place = len(self)
        if place == len(self._lines):
            self._lines = np.concatenate([self._lines, np.zeros_like(self._lines)])
        self._lines[place] = _addresses(row)
        super().append(row)

    @property
    def address(self) -> int:
        """Of the line of the first engine."""
        return int(self._lines.ctypes.data)

    def address_of(self, q: Requests) -> int:
        """Of the line of this table."""
        if self._requests is not q:
            self._requests, self._columns = q, _addresses(q)
        return int(self._columns.ctypes.data)


def _addresses(table: Any) -> Any:
    return np.array([column.ctypes.data for column in table], dtype=np.int64)


def _table_pointer(kind: Any, floating: frozenset[str]) -> Any:
    """A compiled function: the pointer to tables of this kind that lie at an address."""
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
_rows_at = _table_pointer(EngineRow, FLOAT_PARTS)


def _serve(requests: int, rows: int, serving: Any, gateway: Any, until: float) -> None:
    routing.serve(_requests_at(requests)[0], _rows_at(rows), serving, gateway, until)


def _advance(requests: int, row: int, until: float) -> None:
    kernel.advance(_requests_at(requests)[0], _rows_at(row)[0], until)


def compile_kernel(
    modules: Iterable[ModuleType], cache_directory: str
) -> tuple[Callable[..., None], Callable[..., None]]:
    """`serve` and `advance` of these modules' functions, compiled on first use."""
    numba.config.CACHE_DIR = cache_directory
    for module in modules:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                register_jitable(function)
    compiled_serve: Any = numba.njit(cache=True)(_serve)
    compiled_advance: Any = numba.njit(cache=True)(_advance)

    def serve(q: Requests, rows: Rows, serving: Any, gateway: Any, until: float) -> None:
        compiled_serve(rows.address_of(q), rows.address, serving, gateway, until)

    def advance(q: Requests, rows: Rows, place: int, until: float) -> None:
        compiled_advance(rows.address_of(q), rows.address + place * _ROW_BYTES, until)

    return serve, advance
