"""The definition of two pools: one fleet for prefill, one for decode, and the transfer between.

A file of pools is YAML with the fields of `PoolsSpec`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.engine import Scheduling
from servingslo_lab.sim.fleet import FleetSpec, check_engine, read_fleet, read_yaml
from servingslo_lab.sim.service import Routing

_STRICT = ConfigDict(extra="forbid")


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Duration of a KV cache transfer: a fixed part, and a part for each prompt token.

    Source: fixed: Splitwise (ISCA 2024), section 6, the part that layer-wise transfer does not hide
    on H100; tokens: a network of 200 Gb/s and 128 KiB a token, as in Llama 3.1 8B with 16 bits
    (32 layers, 8 heads of 128 for keys and for values).
    """

    fixed_seconds: Annotated[float, Field(ge=0)] = 5e-3
    tokens_per_second: Annotated[float, Field(gt=0)] = 190e3


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSpec:
    """Two pools. Each is a separate fleet: engines, replica count, cold start, routing, failures.

    The scrape interval and lag are those of the prefill pool. Neither pool has dynamic batching,
    priorities, or clients that give up; requests belong to no session.
    """

    prefill: FleetSpec = field(default_factory=FleetSpec)
    decode: FleetSpec = field(default_factory=FleetSpec)
    transfer: Transfer = field(default_factory=Transfer)

    def __post_init__(self) -> None:
        for name, fleet in (("prefill", self.prefill), ("decode", self.decode)):
            _check_engine(name, fleet)
            for setting, allowed in (
                ("dynamic_batching", None),
                ("clients", None),
                ("scheduling", Scheduling.FCFS),
            ):
                value = getattr(fleet, setting)
                if value != allowed:
                    raise InvalidInputError(f"{name}.{setting}", value, str(allowed))
            if fleet.routing is Routing.PREFIX_AFFINE:
                rules = ", ".join(rule for rule in Routing if rule is not fleet.routing)
                raise InvalidInputError(f"{name}.routing", fleet.routing, rules)
        if self.decode.cached_ratio:
            raise InvalidInputError(
                "decode.cached_ratio", self.decode.cached_ratio, "0: the cache comes with transfers"
            )


def _check_engine(name: str, fleet: FleetSpec) -> None:
    try:
        check_engine(fleet)
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}.{error.field}", error.value, error.allowed) from error


FleetDocument = FleetSpec | PoolsSpec
"""The content of a `servingslo backtest --fleet` file; see `servingslo schema fleet`."""

_POOLS: TypeAdapter[PoolsSpec] = TypeAdapter(PoolsSpec)


def read_pools(path: Path) -> PoolsSpec:
    """The pools in a YAML file.

    Raises: InvalidInputError naming file, field, value and the allowed values.
    """
    return read_yaml(path, "pools", _POOLS.validate_python)


def read_fleet_or_pools(path: Path) -> FleetSpec | PoolsSpec:
    """The fleet in a YAML file, or the pools if it has any; then it must have both.

    Raises: InvalidInputError naming file, field, value and the allowed values.
    """
    document = read_yaml(path, "fleet", lambda found: found)
    names = set(document) & {"prefill", "decode", "transfer"} if isinstance(document, dict) else ()
    if not names:
        return read_fleet(path)
    for name in ("prefill", "decode"):
        if name not in names:
            raise InvalidInputError(f"{path}: {name}", None, "a fleet, beside the other pool")
    return read_pools(path)
