"""The definition of several pools: a fleet for each, and how requests pass through them.

A fleet file with `pools` is YAML with the fields of `PoolsDocument`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from servingslo.errors import InvalidInputError
from servingslo.policy.pools.inputs import MOST_POOLS, Role
from servingslo_lab.sim.fleets.fleet import FleetSpec, check_engine, read_fleet, read_yaml
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.replicas.engine import Scheduling

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_LEAST_POOLS = 2
PREFILL, DECODE = "prefill", "decode"


class FirstToken(StrEnum):
    """Which engine emits the first token of an answer that clients receive."""

    PREFILL = "Prefill"
    DECODE = "Decode"


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

    def seconds(self, tokens: float) -> float:
        """Duration for this many prompt tokens."""
        return self.fixed_seconds + tokens / self.tokens_per_second


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSpec:
    """A prefill and a decode pool. Each is a separate fleet: engines, cold start, routing.

    first_token: with Decode, clients get the first token from the decode engine, which computes the
    last prompt token again, as llm-d's sidecar and vLLM's proxy do; with Prefill they get the token
    of the prefill engine. skip_prompt_tokens: requests with shorter prompts go to a decode engine
    directly and are prefilled there. gpu_quota: pods of both pools beyond it stay pending. names:
    of the pools, in results. The scrape interval and lag are those of the prefill pool. Neither
    pool has dynamic batching, priorities, or clients that give up; requests belong to no session.
    """

    prefill: FleetSpec = field(default_factory=FleetSpec)
    decode: FleetSpec = field(default_factory=FleetSpec)
    transfer: Transfer = field(default_factory=Transfer)
    first_token: FirstToken = FirstToken.DECODE
    skip_prompt_tokens: Annotated[int, Field(ge=0)] = 0
    gpu_quota: Annotated[int, Field(ge=0)] | None = None
    names: tuple[str, str] = (PREFILL, DECODE)

    def __post_init__(self) -> None:
        for name, fleet in self.fleets.items():
            _check_pool(name, fleet)
        if self.decode.cached_ratio:
            raise InvalidInputError(
                f"{self.names[1]}.cached_ratio", self.decode.cached_ratio,
                "0: the cache comes with transfers",
            )  # fmt: skip

    @property
    def fleets(self) -> dict[str, FleetSpec]:
        """The fleet of each pool: prefill, then decode."""
        return {self.names[0]: self.prefill, self.names[1]: self.decode}

    @property
    def roles(self) -> dict[str, Role]:
        """The role of each pool."""
        return {self.names[0]: Role.PREFILL, self.names[1]: Role.DECODE}

    def with_fleets(self, fleets: Mapping[str, FleetSpec]) -> "PoolsSpec":
        """The same pools with other fleets, by name."""
        prefill, decode = self.names
        return replace(self, prefill=fleets[prefill], decode=fleets[decode])


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class VariantsSpec:
    """Several pools that each serve whole requests, such as the same model on different cards.

    pools: by name. routing: how the gateway picks an engine among those of all pools. weights: if
    not empty, the gateway first picks a pool at random with its weight, whatever its load or
    replica count, and then an engine by the pool's own routing; weights of an HTTPRoute work so.
    gpu_quota: pods of all pools beyond it stay pending. The scrape interval and lag are those of
    the first pool. No pool has dynamic batching, priorities, or clients that give up; requests
    belong to no session.
    """

    pools: Mapping[str, FleetSpec]
    routing: Routing = Routing.LEAST_LOADED
    weights: Mapping[str, float] = field(default_factory=dict)
    gpu_quota: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        for name, fleet in self.pools.items():
            _check_pool(name, fleet)
        _check_routing("routing", self.routing)
        if self.weights and set(self.weights) != set(self.pools):
            allowed = f"a weight for each of {', '.join(self.pools)}"
            raise InvalidInputError("weights", ", ".join(self.weights), allowed)
        total = math.fsum(self.weights.values())
        if self.weights and (min(self.weights.values()) < 0 or not 0 < total < math.inf):
            allowed = "numbers ≥ 0, one of them > 0"
            raise InvalidInputError("weights", list(self.weights.values()), allowed)

    @property
    def fleets(self) -> dict[str, FleetSpec]:
        """The fleet of each pool."""
        return dict(self.pools)

    @property
    def roles(self) -> dict[str, Role]:
        """The role of each pool."""
        return dict.fromkeys(self.pools, Role.COMBINED)

    def with_fleets(self, fleets: Mapping[str, FleetSpec]) -> "VariantsSpec":
        """The same pools with other fleets, by name."""
        return replace(self, pools={name: fleets[name] for name in self.pools})


AnyPools = PoolsSpec | VariantsSpec


def _check_pool(name: str, fleet: FleetSpec) -> None:
    try:
        check_engine(fleet)
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}.{error.field}", error.value, error.allowed) from error
    for setting, allowed in (
        ("dynamic_batching", None),
        ("clients", None),
        ("scheduling", Scheduling.FCFS),
    ):
        value = getattr(fleet, setting)
        if value != allowed:
            raise InvalidInputError(f"{name}.{setting}", value, str(allowed))
    _check_routing(f"{name}.routing", fleet.routing)


def _check_routing(name: str, routing: Routing) -> None:
    if routing is Routing.PREFIX_AFFINE:
        rules = ", ".join(rule for rule in Routing if rule is not routing)
        raise InvalidInputError(name, routing, rules)


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFleet(FleetSpec):
    """One pool of a file: a fleet with its name and its role."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    role: Role = Role.COMBINED

    @property
    def fleet(self) -> FleetSpec:
        """Only the fleet."""
        return FleetSpec(**{one.name: getattr(self, one.name) for one in fields(FleetSpec)})


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsDocument:
    """A fleet file with several pools: a Prefill and a Decode one, or 2 to 8 Combined ones.

    transfer, first_token, skip_prompt_tokens: of prefill and decode, see `PoolsSpec`. routing,
    weights: of Combined pools, see `VariantsSpec`.
    """

    pools: Annotated[tuple[PoolFleet, ...], Field(min_length=_LEAST_POOLS, max_length=MOST_POOLS)]
    gpu_quota: Annotated[int, Field(ge=1)] | None = None
    transfer: Transfer | None = None
    first_token: FirstToken | None = None
    skip_prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    routing: Routing | None = None
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def spec(self) -> AnyPools:
        """The pools that are simulated.

        Raises: InvalidInputError for names that are not unique, for incomplete roles, and for
        settings of the other kind of pools.
        """
        names = [pool.name for pool in self.pools]
        if len(set(names)) < len(names):
            raise InvalidInputError("pools.name", ", ".join(names), "a name of its own for each")
        roles = sorted(pool.role for pool in self.pools)
        fleets = {pool.name: pool.fleet for pool in self.pools}
        through = {
            name: getattr(self, name)
            for name in ("transfer", "first_token", "skip_prompt_tokens")
            if getattr(self, name) is not None
        }
        if set(roles) == {Role.COMBINED}:
            _check_absent(through, "with roles Prefill and Decode")
            routing = self.routing or Routing.LEAST_LOADED
            return VariantsSpec(
                pools=fleets, routing=routing, weights=self.weights, gpu_quota=self.gpu_quota
            )
        if roles != sorted((Role.PREFILL, Role.DECODE)):
            allowed = "one Prefill and one Decode, or only Combined"
            raise InvalidInputError("pools.role", ", ".join(roles), allowed)
        split = {"routing": self.routing, "weights": self.weights}
        _check_absent({k: v for k, v in split.items() if v}, "with Combined pools")
        prefill, decode = (
            next(pool for pool in self.pools if pool.role is role)
            for role in (Role.PREFILL, Role.DECODE)
        )
        return PoolsSpec(
            prefill=prefill.fleet, decode=decode.fleet, names=(prefill.name, decode.name),
            gpu_quota=self.gpu_quota, **through,
        )  # fmt: skip


def _check_absent(stated: Mapping[str, object], allowed: str) -> None:
    for name, value in stated.items():
        raise InvalidInputError(name, value, allowed)


FleetDocument = FleetSpec | PoolsDocument
"""The content of a `servingslo backtest --fleet` file; see `servingslo schema fleet`."""

_POOLS: TypeAdapter[PoolsDocument] = TypeAdapter(PoolsDocument)


def read_pools(path: Path) -> AnyPools:
    """The pools in a YAML file.

    Raises: InvalidInputError naming file, field, value and the allowed values.
    """
    return read_yaml(path, "pools", lambda document: _POOLS.validate_python(document).spec)


def read_fleet_or_pools(path: Path) -> FleetSpec | AnyPools:
    """The fleet in a YAML file, or the pools if it has any.

    Raises: InvalidInputError naming file, field, value and the allowed values.
    """
    document = read_yaml(path, "fleet", lambda found: found)
    if isinstance(document, dict) and "pools" in document:
        return read_pools(path)
    return read_fleet(path)
