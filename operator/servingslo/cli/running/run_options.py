"""Everything that the operator is started with."""

from dataclasses import dataclass
from pathlib import Path

from servingslo.cli.prometheus_flags import PrometheusFlags
from servingslo.cli.running.feature_flags import ONE_DECIDER, Deciders, Started
from servingslo.controller.actuators.catalogue import ACTUATORS
from servingslo.controller.actuators.means import ActuatorRow
from servingslo.controller.lease.election import Terms
from servingslo.policy.inputs import Limits
from servingslo.runtimes.gateways import GatewayProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything that the operator was started with. No namespaces: all of them.

    gateway: whose counts are read; None for none. actuators: what may be changed, in the order in
    which a decision is carried out. read_config_maps: whether command lines that are made of
    ConfigMaps are read from them. limit_kinds: objects with a gateway's bound that may be written;
    none by default. features: what is started of each feature that is switched on.
    lease_namespace: of the Lease by which several pods elect one; None for a process alone.
    deciders: which processes of the release decide.
    """

    prometheus_url: str
    prometheus: PrometheusFlags
    gateway: GatewayProfile | None
    limits: Limits
    namespaces: tuple[str, ...]
    health_host: str
    health_port: int
    record: Path | None
    lease_namespace: str | None
    lease_name: str
    lease_terms: Terms
    deciders: Deciders = ONE_DECIDER
    limit_kinds: frozenset[str] = frozenset()
    features: tuple[Started, ...] = ()
    actuators: tuple[ActuatorRow, ...] = ACTUATORS
    read_config_maps: bool = False
