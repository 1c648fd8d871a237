"""What a user states about a backtest, checked before anything is simulated."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servingslo.api.convert import fleet_from_spec
from servingslo.cli.manifest import read_spec
from servingslo.errors import InvalidInputError
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import ReplicaTargets, ScaleTarget, Targets
from servingslo.policy.pools.inputs import FleetTargets
from servingslo_lab.cli.sizing.inputs import parse_objectives
from servingslo_lab.sim.fleets.engine_kinds import ENGINE_KINDS
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.policies import (
    COLD,
    EACH,
    FORESIGHT,
    IN_POOLS,
    ONLY_IN_POOLS,
    OPTIMUM,
    ORACLE,
    OURS,
    RATIO,
    SIMPLE,
    SINGLE,
    STATIC,
    TUNED,
    Policy,
    policy_of,
)
from servingslo_lab.sim.pools.fleet import AnyPools, PoolsSpec, read_fleet_or_pools
from servingslo_lab.sim.pools.replay import DECIDES
from servingslo_lab.sim.scenario import Cell, Scenario

DEFAULT_POLICIES = (OURS, SIMPLE, "hpa-waiting", "hpa-kv", "keda-slo", "knative", STATIC)
PATH_POLICIES = (OURS, EACH, "keda-slo", RATIO, STATIC)
VARIANT_POLICIES = (OURS, EACH, "keda-slo", STATIC, SINGLE)
MOST_SEEDS = 100
MOST_PROCESSES = 256
LARGEST_SCALE = 1000.0
_TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="backtest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A checked backtest. policies: as they were written, once each."""

    scenario: Scenario
    policies: tuple[Policy, ...]
    seeds: tuple[int, ...]
    against_oracle: bool
    request_count: int
    duration_seconds: float

    @property
    def cells(self) -> list[Cell]:
        """The runs, all policies of a seed together."""
        return [
            Cell(
                scenario=self.scenario,
                policy=policy,
                seed=seed,
                against_oracle=self.against_oracle,
            )
            for seed in self.seeds
            for policy in self.policies
        ]


def stated_targets(manifest: Path | None, objectives: Sequence[str]) -> Targets:
    """The resource of a manifest, or one of the objectives alone.

    Raises: InvalidInputError unless exactly one of both is given, and for objectives that a trace
    cannot be held against.
    """
    if (manifest is None) == (not objectives):
        raise InvalidInputError(
            "-f", None if manifest is None else str(manifest), "either -f or --objective"
        )
    if manifest is not None:
        targets = fleet_from_spec(read_spec(manifest)).pools[0].targets
        field = f"{manifest}: spec.objectives"
    else:
        targets = Targets(
            target=_TARGET,
            objectives=parse_objectives(objectives),
            replicas=ReplicaTargets(),
        )
        field = "--objective"
    measured = {LatencyMetric.TTFT, LatencyMetric.TPOT, LatencyMetric.LATENCY}
    found = {objective.metric for objective in targets.objectives}
    if not found & measured:
        allowed = f"one of {', '.join(sorted(measured))} at least"
        raise InvalidInputError(field, ", ".join(sorted(found)), allowed)
    return targets


def stated_pool_targets(
    manifest: Path | None, fleet: str, spec: FleetSpec | AnyPools
) -> FleetTargets | None:
    """The pools of a manifest; None if it has one target, or if there is none.

    Raises: InvalidInputError unless the fleet has pools of the same names and roles.
    """
    stated = None if manifest is None else fleet_from_spec(read_spec(manifest))
    if stated is None or stated.only is not None:
        return None
    roles = {pool.name: pool.role for pool in stated.pools}
    if isinstance(spec, FleetSpec) or spec.roles != roles:
        named = ", ".join(f"{name} ({role})" for name, role in roles.items())
        raise InvalidInputError("--fleet", fleet, f"a fleet with the pools of {manifest}: {named}")
    return stated


def stated_fleet(text: str) -> FleetSpec | AnyPools:
    """The fleet or the pools of a file, or engines that are known by name.

    Raises: InvalidInputError for neither, and as `read_fleet` does.
    """
    if text in ENGINE_KINDS:
        return FleetSpec(engine=text)
    path = Path(text)
    if not path.exists():
        raise InvalidInputError("--fleet", text, f"a YAML file, or {', '.join(ENGINE_KINDS)}")
    try:
        found = read_fleet_or_pools(path)
    except InvalidInputError as error:
        # A file that cannot be read has no field to name.
        field = "--fleet" if error.value == text else error.field
        raise InvalidInputError(field, error.value, error.allowed) from error
    if isinstance(found, FleetSpec):
        _check_fleet(f"{path}: ", found)
    else:
        for name, fleet in found.fleets.items():
            _check_fleet(f"{path}: {name}.", fleet)
    return found


def _check_fleet(place: str, fleet: FleetSpec) -> None:
    """Raises: InvalidInputError for what a simulation may be but a fleet is not."""
    for name, value in (
        ("initial_replicas", fleet.initial_replicas),
        ("max_replicas", fleet.max_replicas),
        ("gpu_quota", fleet.gpu_quota),
    ):
        if value is not None and value < 1:
            raise InvalidInputError(f"{place}{name}", value, "1 or more")
    for name, seconds, least in (
        ("cold_start.mean_seconds", fleet.cold_start.mean_seconds, 0.0),
        ("scrape_interval_seconds", fleet.scrape_interval_seconds, 1.0),
    ):
        if not least <= seconds < float("inf"):
            raise InvalidInputError(f"{place}{name}", seconds, f"{least:g} seconds or more")
    if not 0.0 <= fleet.scrape_lag_seconds < fleet.scrape_interval_seconds:
        allowed = f"0 to below {fleet.scrape_interval_seconds:g} (scrape_interval_seconds)"
        lag = fleet.scrape_lag_seconds
        raise InvalidInputError(f"{place}scrape_lag_seconds", lag, allowed)


def stated_policies_of_pools(
    names: Sequence[str], spec: AnyPools, *, against_oracle: bool
) -> list[Policy]:
    """The policies by name, each once; those that scale these pools, at stated settings.

    Raises: InvalidInputError for others, and as `stated_policies`.
    """
    if against_oracle:
        raise InvalidInputError("--against-oracle", "pools", "a fleet of one pool")
    on_a_path = isinstance(spec, PoolsSpec)
    others = {SINGLE, OPTIMUM} if on_a_path else {RATIO}
    for name in names:
        rule, _, settings = name.partition(":")
        if rule not in IN_POOLS or rule in others:
            kind = "prefill and decode" if on_a_path else "Combined"
            known = ", ".join(one for one in IN_POOLS if one not in others)
            raise InvalidInputError("--policy", rule, f"with {kind} pools {known}")
        if settings == TUNED:
            allowed = "name=number: the tuned ones are of one pool"
            raise InvalidInputError(f"--policy: settings of {rule}", settings, allowed)
    return _policies(names or (PATH_POLICIES if on_a_path else VARIANT_POLICIES), "")


def check_objectives_of_pools(targets: Targets, spec: AnyPools, policies: Sequence[Policy]) -> None:
    """Raises: InvalidInputError unless each policy can hold the objectives.

    One that decides for prefill and decode separately needs an objective of each, and none of both.
    """
    separate = [one.label for one in policies if one.name not in {OURS, COLD, STATIC}]
    if not isinstance(spec, PoolsSpec) or not separate:
        return
    metrics = {objective.metric for objective in targets.objectives}
    for metric in sorted(metrics - frozenset().union(*DECIDES.values())):
        allowed = f"for {separate[0]} those that one of the pools decides"
        raise InvalidInputError("objective", metric, allowed)
    for role, decided in DECIDES.items():
        if not metrics & decided:
            words = " or ".join(sorted(decided))
            allowed = f"for {separate[0]} an objective of {role.lower()}: {words}"
            raise InvalidInputError("objectives", ", ".join(sorted(metrics)), allowed)


def stated_policies(names: Sequence[str], engine: str, *, against_oracle: bool) -> list[Policy]:
    """The policies by name, each once; the oracle last where costs are set beside it.

    Raises: InvalidInputError for a name or a setting that does not exist.
    """
    for name in names:
        if name in ONLY_IN_POOLS:
            raise InvalidInputError("--policy", name, "a fleet of several pools for it")
    wanted = list(names or DEFAULT_POLICIES)
    return _policies([*wanted, FORESIGHT, ORACLE] if against_oracle else wanted, engine)


def _policies(names: Sequence[str], engine: str) -> list[Policy]:
    try:
        return [policy_of(name, tuned_for=engine) for name in dict.fromkeys(names)]
    except InvalidInputError as error:
        inner = error.field.removeprefix("policy").removeprefix(": ")
        field = f"--policy: {inner}" if inner else "--policy"
        raise InvalidInputError(field, error.value, error.allowed) from error


def with_cold(policies: Sequence[Policy]) -> list[Policy]:
    """The policies, and after the planner that is told a past the one that is told none."""
    return [
        one
        for policy in policies
        for one in ([policy, policy_of(COLD)] if policy.name == OURS else [policy])
    ]


def default_processes() -> int:
    """One for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_cache() -> Path:
    """Where runs are kept: with the user's other caches."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "servingslo" / "backtests"
