"""`servingslo run`: the operator itself, what the container starts."""

import asyncio
import logging
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servingslo.cli.json_log import JSONFormatter
from servingslo.cli.options import (
    GatewayNamespaceLabel,
    GatewayPattern,
    GatewayProfileName,
    GatewayReporter,
    GatewayWorkloadLabel,
)
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.controller.recording_validation import check_tick
from servingslo.errors import InvalidInputError
from servingslo.policy.inputs import LimitKind, Limits
from servingslo.runtimes.gateways import NO_GATEWAY, gateway_profile

if TYPE_CHECKING:
    from servingslo.cli.run_options import KedaOptions

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


class Switch(StrEnum):
    """A switch that is given with its value, as charts do."""

    ON = "true"
    OFF = "false"


@asks_prometheus()
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
            help="Whether of batch limits only those of running servers may be changed (Triton), "
            "and no pod template.",
        ),
    ] = Switch.OFF,
    read_config_maps: Annotated[
        Switch,
        typer.Option(
            envvar="SERVINGSLO_READ_CONFIG_MAPS",
            help="Whether ConfigMaps that engines take flags, variables or their --config file "
            "from may be read.",
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
    keda_scaler_port: Annotated[
        int | None,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_PORT",
            help="Port of KEDA's external scaler (gRPC); none by default. Needs the extra `keda`, "
            "and a certificate or --keda-scaler-plain-text.",
            min=0,
            max=65535,
        ),
    ] = None,
    keda_scaler_host: Annotated[
        str, typer.Option(envvar="SERVINGSLO_KEDA_SCALER_HOST", help="Address of it.")
    ] = "127.0.0.1",
    keda_scaler_certificate_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_CERTIFICATE_FILE",
            help="Its certificate; read again at each handshake.",
        ),
    ] = None,
    keda_scaler_key_file: Annotated[
        Path | None,
        typer.Option(envvar="SERVINGSLO_KEDA_SCALER_KEY_FILE", help="The certificate's key."),
    ] = None,
    keda_scaler_client_ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_CLIENT_CA_FILE",
            help="Authority of the clients that may ask; whoever can reach it by default.",
        ),
    ] = None,
    keda_scaler_plain_text: Annotated[
        Switch,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_PLAIN_TEXT", help="Whether it is served without TLS."
        ),
    ] = Switch.OFF,
    max_replicas: Annotated[
        int | None,
        typer.Option(envvar="SERVINGSLO_MAX_REPLICAS", help="Largest count of any target.", min=1),
    ] = None,
    max_step: Annotated[
        int | None,
        typer.Option(envvar="SERVINGSLO_MAX_STEP", help="Largest change in one decision.", min=1),
    ] = None,
    health_host: Annotated[
        str,
        typer.Option(
            envvar="SERVINGSLO_HEALTH_HOST", help="Address of /metrics, /healthz and /readyz."
        ),
    ] = "127.0.0.1",
    health_port: Annotated[
        int,
        typer.Option(
            envvar="SERVINGSLO_HEALTH_PORT",
            help="Port of these; 0 picks a free one.",
            min=0,
            max=65535,
        ),
    ] = 8080,
    engine_range: Annotated[
        list[str] | None,
        typer.Option(
            help="Addresses of pods that the operator may speak to (CIDR), to read limits of "
            "dynamic batches on Triton, and with --batching-apply to set them; repeatable. Nobody "
            "by default."
        ),
    ] = None,
    engine_keys_directory: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_ENGINE_KEYS_DIRECTORY",
            help="Folder with a file for each namespace that holds name=value of the header which "
            "its servers ask for where limits are set.",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_RECORD", help="Append what is observed to this file of JSON lines."
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            envvar="SERVINGSLO_LEASE_NAMESPACE",
            help="Namespace of the Lease by which one of several pods is elected. In a pod its own "
            "by default; without any, this process takes itself for the only one.",
        ),
    ] = None,
    lease_name: Annotated[
        str, typer.Option(envvar="SERVINGSLO_LEASE_NAME", help="Name of that Lease.")
    ] = "servingslo-operator",
    lease_seconds: Annotated[
        int,
        typer.Option(
            envvar="SERVINGSLO_LEASE_SECONDS",
            help="How long the Lease is valid after a renewal, 5 to 120.",
        ),
    ] = 10,
    lease_renew_seconds: Annotated[
        float,
        typer.Option(
            envvar="SERVINGSLO_LEASE_RENEW_SECONDS",
            help="A leader that has not renewed it for so long writes nothing more; "
            "at most 2 s below the Lease.",
        ),
    ] = 6.0,
    lease_retry_seconds: Annotated[
        float,
        typer.Option(
            envvar="SERVINGSLO_LEASE_RETRY_SECONDS",
            help="Time from one attempt to the next, at most half of the renewal.",
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
    """Run the operator until it is told to stop.

    Example: servingslo run --prometheus-url=http://prometheus-operated.monitoring.svc:9090
    """
    # kopf and the clients take a second to import, which no other command needs.
    from servingslo.adapters.engines.channel import engine_options  # noqa: PLC0415
    from servingslo.cli.operate import operate, pod_namespace  # noqa: PLC0415
    from servingslo.cli.run_options import KedaOptions, RunOptions  # noqa: PLC0415
    from servingslo.controller.election import (  # noqa: PLC0415
        Terms,
        check_object_name,
        check_terms,
    )

    _configure_logging(log_level, log_format)
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
            tick_seconds=check_tick(tick_seconds, "--tick-seconds"),
            scaler_served=keda_scaler_port is not None,
        ),
        namespaces=tuple(namespace or ()),
        limit_kinds=frozenset(kind.value for kind in admission_kind or ()),
        keda=_keda_options(
            KedaOptions(
                host=keda_scaler_host,
                port=keda_scaler_port,
                certificate_file=keda_scaler_certificate_file,
                key_file=keda_scaler_key_file,
                client_ca_file=keda_scaler_client_ca_file,
            ),
            plain_text=keda_scaler_plain_text is Switch.ON,
        )
        if keda_scaler_port is not None
        else None,
        health_host=health_host,
        health_port=health_port,
        record=record,
        read_config_maps=read_config_maps is Switch.ON,
        engines=engine_options(engine_range, engine_keys_directory) if engine_range else None,
        lease_namespace=check_object_name("--lease-namespace", lease_namespace)
        if lease_namespace
        else pod_namespace(),
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


def _keda_options(options: "KedaOptions", *, plain_text: bool) -> "KedaOptions":
    """The options. Raises: InvalidInputError for neither a certificate nor plain text."""
    has_certificate = options.certificate_file is not None and options.key_file is not None
    if not has_certificate and not plain_text:
        raise InvalidInputError(
            "--keda-scaler-certificate-file",
            options.certificate_file,
            "with --keda-scaler-key-file, or --keda-scaler-plain-text on",
        )
    return options


def _configure_logging(level: str, form: LogFormat) -> None:
    if level not in _LEVELS:
        raise InvalidInputError("--log-level", level, ", ".join(_LEVELS))
    kind = JSONFormatter if form is LogFormat.JSON else logging.Formatter
    formatter = kind("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if level != "DEBUG":
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
