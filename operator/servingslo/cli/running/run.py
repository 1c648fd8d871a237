"""`servingslo run`: the operator itself, what the container starts."""

import asyncio
import logging
import time
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from servingslo.api.v1alpha1.spec import MOST_PRIORITY
from servingslo.cli.options import (
    GatewayNamespaceLabel,
    GatewayPattern,
    GatewayProfileName,
    GatewayReporter,
    GatewayWorkloadLabel,
)
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.cli.running.feature_flags import Deciders, Flags, asks_features, deciders, started
from servingslo.cli.running.json_log import JSONFormatter
from servingslo.cli.running.switch import Switch
from servingslo.controller.recordings.validation import check_tick
from servingslo.errors import InvalidInputError
from servingslo.policy.inputs import LimitKind, Limits
from servingslo.runtimes.gateway_catalogue import NO_GATEWAY, gateway_profile

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
# Libraries that say at INFO what is of no use to an administrator.
_QUIET = ("kopf", "kubernetes", "urllib3", "asyncio", "aiohttp")


class OperatorMode(StrEnum):
    """Auto: the mode of each resource holds. Recommend: the kill switch, nothing is changed."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"


class LogFormat(StrEnum):
    """How a line of the log is written."""

    TEXT = "text"
    JSON = "json"


@asks_prometheus()
@asks_features
def run(
    prometheus_url: Annotated[
        str,
        typer.Option(envvar="SERVINGSLO_PROMETHEUS_URL", help="Address of Prometheus's HTTP API."),
    ],
    asking: PrometheusFlags = PrometheusFlags(),
    gateway_profile_name: GatewayProfileName = NO_GATEWAY,
    gateway_workload_label: GatewayWorkloadLabel = "",
    gateway_namespace_label: GatewayNamespaceLabel = "",
    gateway_reporter: GatewayReporter = "",
    gateway_pattern: GatewayPattern = "",
    tick_seconds: Annotated[
        float,
        typer.Option(envvar="SERVINGSLO_TICK_SECONDS", help="Time between decisions."),
    ] = 15.0,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SERVINGSLO_NAMESPACE", help="Namespace to watch; repeatable. All by default."
        ),
    ] = None,
    mode: Annotated[
        OperatorMode,
        typer.Option(
            envvar="SERVINGSLO_MODE",
            help="Auto, or Recommend: decide and report, change nothing.",
        ),
    ] = OperatorMode.AUTO,
    batching_apply: Annotated[
        Switch,
        typer.Option(
            envvar="SERVINGSLO_BATCHING_APPLY",
            help="Whether batch limits may be changed, in pod templates and on running servers.",
        ),
    ] = Switch.OFF,
    batching_servers_only: Annotated[
        Switch,
        typer.Option(
            envvar="SERVINGSLO_BATCHING_SERVERS_ONLY",
            help="Whether batch limits may be changed on running servers only (Triton), never in "
            "pod templates.",
        ),
    ] = Switch.OFF,
    read_config_maps: Annotated[
        Switch,
        typer.Option(
            envvar="SERVINGSLO_READ_CONFIG_MAPS",
            help="Whether ConfigMaps with flags, variables or --config files of engines may be "
            "read.",
        ),
    ] = Switch.OFF,
    admission_kind: Annotated[
        list[LimitKind] | None,
        typer.Option(
            envvar="SERVINGSLO_ADMISSION_KIND",
            help="Kind of object that a gateway's bound may be written into; repeatable. None by "
            "default.",
        ),
    ] = None,
    features: Flags = MappingProxyType({}),
    max_replicas: Annotated[
        int | None,
        typer.Option(
            envvar="SERVINGSLO_MAX_REPLICAS", help="Largest replica count of any target.", min=1
        ),
    ] = None,
    max_step: Annotated[
        int | None,
        typer.Option(envvar="SERVINGSLO_MAX_STEP", help="Largest change in one decision.", min=1),
    ] = None,
    max_priority: Annotated[
        int | None,
        typer.Option(
            envvar="SERVINGSLO_MAX_PRIORITY",
            help="Highest spec.priority that counts.",
            min=-MOST_PRIORITY,
            max=MOST_PRIORITY,
        ),
    ] = None,
    health_host: Annotated[
        str,
        typer.Option(
            envvar="SERVINGSLO_HEALTH_HOST",
            help="Address of /metrics, /healthz and /readyz; :: for all, of IPv4 and IPv6.",
        ),
    ] = "127.0.0.1",
    health_port: Annotated[
        int,
        typer.Option(
            envvar="SERVINGSLO_HEALTH_PORT",
            help="Port of /metrics, /healthz and /readyz; 0 picks a free one.",
            min=0,
            max=65535,
        ),
    ] = 8080,
    record: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_RECORD", help="Append observations to this file of JSON lines."
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            envvar="SERVINGSLO_LEASE_NAMESPACE",
            help="Namespace of the Lease that elects one of several pods. In a pod its own by "
            "default; without a Lease this process assumes that it is the only one.",
        ),
    ] = None,
    lease_name: Annotated[
        str, typer.Option(envvar="SERVINGSLO_LEASE_NAME", help="Name of that Lease.")
    ] = "servingslo-operator",
    lease_seconds: Annotated[
        int,
        typer.Option(
            envvar="SERVINGSLO_LEASE_SECONDS",
            help="Seconds that the Lease is valid after a renewal, 5 to 120.",
        ),
    ] = 10,
    lease_renew_seconds: Annotated[
        float,
        typer.Option(
            envvar="SERVINGSLO_LEASE_RENEW_SECONDS",
            help="Seconds without a renewal after which a leader stops writing; at most 2 below "
            "the Lease.",
        ),
    ] = 6.0,
    lease_retry_seconds: Annotated[
        float,
        typer.Option(
            envvar="SERVINGSLO_LEASE_RETRY_SECONDS",
            help="Seconds between attempts to renew; at most half of the renewal time.",
        ),
    ] = 2.0,
    log_level: Annotated[
        str, typer.Option(envvar="SERVINGSLO_LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")
    ] = "INFO",
    log_format: Annotated[
        LogFormat,
        typer.Option(
            envvar="SERVINGSLO_LOG_FORMAT",
            help="text: key=value pairs; json: one object a line with the same keys.",
        ),
    ] = LogFormat.TEXT,
) -> None:
    """Run the operator until it is stopped.

    Example: servingslo run --prometheus-url=http://prometheus-operated.monitoring.svc:9090
    """
    # kopf and the clients take a second to import, which no other command needs.
    from servingslo.cli.running.operate import operate, pod_namespace  # noqa: PLC0415
    from servingslo.cli.running.run_options import RunOptions  # noqa: PLC0415
    from servingslo.controller.lease.election import Terms, check_object_name, check_terms  # noqa: PLC0415

    of_leases = lease_namespace or pod_namespace()
    deciding = deciders(features, alone=of_leases is None)
    _configure_logging(log_level, log_format, deciding)
    on = started(features, deciding.count)
    options = RunOptions(
        prometheus_url=prometheus_url,
        prometheus=asking,
        gateway=gateway_profile(
            gateway_profile_name,
            workload_label=gateway_workload_label,
            namespace_label=gateway_namespace_label,
            reporter=gateway_reporter,
            pattern=gateway_pattern,
        ),
        limits=Limits(
            recommend_only=mode is OperatorMode.RECOMMEND,
            batching_apply_enabled=batching_apply is Switch.ON,
            batching_servers_only=batching_servers_only is Switch.ON,
            max_replicas=max_replicas,
            max_step=max_step,
            max_priority=max_priority,
            tick_seconds=check_tick(tick_seconds, "--tick-seconds"),
            scaler_served=any(one.part.gives_counts for one in on),
        ),
        namespaces=tuple(namespace or ()),
        limit_kinds=frozenset(kind.value for kind in admission_kind or ()),
        features=on,
        health_host=health_host,
        health_port=health_port,
        record=record,
        read_config_maps=read_config_maps is Switch.ON,
        lease_namespace=check_object_name("--lease-namespace", of_leases) if of_leases else None,
        deciders=deciding,
        lease_name=check_object_name("--lease-name", lease_name),
        lease_terms=check_terms(
            Terms(
                lease_seconds=lease_seconds,
                renew_seconds=lease_renew_seconds,
                retry_seconds=lease_retry_seconds,
            )
        ),
    )
    asyncio.run(operate(options))


def _configure_logging(level: str, form: LogFormat, deciding: Deciders) -> None:
    if level not in _LEVELS:
        raise InvalidInputError("--log-level", level, ", ".join(_LEVELS))
    kind = JSONFormatter if form is LogFormat.JSON else logging.Formatter
    formatter = kind("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    from servingslo.cli.running.json_log import keep_once  # noqa: PLC0415  imports kopf

    handler.addFilter(keep_once)
    if deciding.note is not None:
        handler.addFilter(deciding.note)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if level != "DEBUG":
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
