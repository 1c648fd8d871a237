"""The flow between pools compiled by numba, on plain pointers like the kernel."""

import hashlib
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from numba.extending import register_jitable

from servingslo_lab.sim.pools import flow
from servingslo_lab.sim.pools.flow import TRANSFER_FLOATS, Transfers
from servingslo_lab.sim.replicas.compiled import Rows, _requests_at, _rows_at, _table_pointer
from servingslo_lab.sim.replicas.layout import Requests

_transfers_at = _table_pointer(Transfers, TRANSFER_FLOATS)


def _serve_pools(
    p: int, d: int, t: int, prefill: int, decode: int, remaining: Any, taking: Any, computing: Any,
    serving: Any, decoding: Any, gateway: Any, decode_gateway: Any, until: float,
) -> None:  # fmt: skip
    flow.serve_pools(
        _requests_at(p)[0], _requests_at(d)[0], _transfers_at(t)[0], _rows_at(prefill),
        _rows_at(decode), remaining, taking, computing, serving, decoding, gateway,
        decode_gateway, until,
    )  # fmt: skip


def compile_flow() -> Any:
    """`flow.serve_pools` on arrays, compiled on first use; the kernel must have been set up."""
    for function in vars(flow).values():
        if isinstance(function, FunctionType) and function.__module__ == flow.__name__:
            register_jitable(function)
    # Next to the kernel's machine code, whose folder is named by a digest of all its sources.
    digest = hashlib.sha256(Path(flow.__file__).read_bytes()).hexdigest()[:16]
    kernel_folder = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(Path(kernel_folder) / digest)
    try:
        serve = numba.njit(cache=True)(_serve_pools)
    finally:
        numba.config.CACHE_DIR = kernel_folder

    def serve_pools(
        p: Requests, d: Requests, t: Transfers, prefill: Rows, decode: Rows, *rest: Any
    ) -> None:
        tables = prefill.table(p), decode.table(d), prefill.table(t)  # type: ignore[arg-type]
        serve(*tables, prefill.address(0), decode.address(0), *rest)

    return serve_pools
