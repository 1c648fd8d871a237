"""Run the flow between pools in Python, or the same source compiled by numba.

Both produce the same results, bit for bit.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from servingslo_lab.sim.pools import flow
from servingslo_lab.sim.pools.flow import Transfers
from servingslo_lab.sim.replicas.backend import Backend, Column

_COMPILED = "compiled"
Flow = Callable[..., None]


def flow_of(backend: Backend) -> Flow:
    """`flow.serve_pools` for tables of this backend."""
    return _compiled() if backend.name == _COMPILED else flow.serve_pools


@cache
def _compiled() -> Flow:
    from servingslo_lab.sim.pools import compiled  # noqa: PLC0415 - optional, and slow to import

    found: Flow = compiled.compile_flow()
    return found


def transfer_table(columns: Mapping[str, Column], backend: Backend) -> Transfers:
    """Transfers in the form of this backend."""
    if backend.name == _COMPILED:
        arrays: dict[str, Any] = {name: column.copy() for name, column in columns.items()}
        return Transfers(**arrays)
    return Transfers(**{name: column.tolist() for name, column in columns.items()})
