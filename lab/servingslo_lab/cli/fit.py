"""`servingslo fit`: the service law of an engine, from what it measured."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.cli.live import Access
from servingslo.cli.options import (
    Context,
    GatewayNamespaceLabel,
    GatewayPattern,
    GatewayProfileName,
    GatewayReporter,
    GatewayWorkloadLabel,
    Kubeconfig,
)
from servingslo.cli.output import OutputFormat, answer_no, as_json
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.errors import InvalidInputError
from servingslo.runtimes.gateway_catalogue import NO_GATEWAY, gateway_profile
from servingslo.units import format_duration, parse_duration_seconds
from servingslo_lab.cli.fitting.law import Fit, fit_text, fitted
from servingslo_lab.cli.fitting.sources import (
    LiveSource,
    StatedLimits,
    live_samples,
    page_samples,
    recorded_samples,
)
from servingslo_lab.cli.options import GatewayName, check_read_back, flag_named

SHORTEST_STEP_SECONDS = 1.0
MOST_READINGS = 1000


@asks_prometheus()
def fit(
    metrics: Annotated[
        list[Path] | None,
        typer.Option(help="A saved /metrics page of one pod; repeat it, in order of time."),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(help="Time between pages; by default when the files were last changed."),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="The engine's limit, which pages do not tell.", min=1)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="The engine's limit, which pages do not tell.", min=1)
    ] = None,
    recording: Annotated[
        str | None, typer.Option(help="A recording, instead of pages; - reads standard input.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="One pool of the recording; all of them by default.")
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            "--prometheus",
            "--prometheus-url",
            help="Address of Prometheus' HTTP API, for a live fit.",
        ),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the target.")] = None,
    target: Annotated[
        str | None, typer.Option(help="KIND/NAME of the workload: Deployment/llama-chat.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="How far back to read Prometheus; 30m by default.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(help="Time between readings, not below the scrape interval; 15s by default."),
    ] = None,
    asking: PrometheusFlags = PrometheusFlags(),
    gateway_profile_name: GatewayProfileName = NO_GATEWAY,
    gateway_workload_label: GatewayWorkloadLabel = "",
    gateway_namespace_label: GatewayNamespaceLabel = "",
    gateway_reporter: GatewayReporter = "",
    gateway_pattern: GatewayPattern = "",
    gateway_name: GatewayName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="How the fit is written.")
    ] = OutputFormat.TEXT,
) -> None:
    """Fit a + b·sequences + c·prompt tokens to saved pages, a recording, or a live Prometheus.

    The estimator is the operator's own. Exit code 1: a law was not found or cannot be trusted.

    Example: servingslo fit --prometheus http://localhost:9090 --namespace inference
    --target Deployment/llama-chat --window 30m
    """
    sources = {"--metrics": metrics, "--recording": recording, "--prometheus": prometheus}
    stated = [flag for flag, value in sources.items() if value]
    if len(stated) != 1:
        value = " and ".join(stated) or None
        raise InvalidInputError("--metrics", value, f"exactly one of {', '.join(sources)}")
    if gateway_name is not None and (not prometheus or gateway_profile_name == NO_GATEWAY):
        allowed = "only with --prometheus and --gateway-profile"
        raise InvalidInputError("--gateway-name", gateway_name, allowed)
    check_read_back(prometheus, window, step)
    if pool is not None and not recording:
        raise InvalidInputError("--pool", pool, "only with --recording")
    if metrics:
        limits = StatedLimits(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        between = None if interval is None else _interval_seconds(interval)
        fits = [fitted(str(metrics[-1]), page_samples(metrics, between, limits))]
    elif recording:
        found = recorded_samples(recording, pool)
        fits = [fitted(name, samples) for name, samples in found.items()]
    else:
        with flag_named("--prometheus"):
            config = asking.config(
                prometheus or "",
                gateway=gateway_profile(
                    gateway_profile_name,
                    workload_label=gateway_workload_label,
                    namespace_label=gateway_namespace_label,
                    reporter=gateway_reporter,
                    pattern=gateway_pattern,
                ),
            )
        access = Access(kubeconfig=kubeconfig, context=context)
        source = _live_source(config, access, namespace, target, window or "30m", step or "15s")
        source = replace(source, gateway_name=gateway_name)
        fits = [fitted(f"{source.namespace}/{source.target}", live_samples(source))]
    _tell(fits, output)
    if not all(one.trusted for one in fits):
        raise answer_no()


def _tell(fits: list[Fit], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        typer.echo(as_json(fits))
    else:
        typer.echo("\n".join(fit_text(one) for one in fits))


def _interval_seconds(text: str) -> float:
    seconds = parse_duration_seconds(text, "--interval")
    if seconds < SHORTEST_STEP_SECONDS:
        raise InvalidInputError("--interval", text, "1s or longer")
    return seconds


def _live_source(
    config: PrometheusConfig,
    access: Access,
    namespace: str | None,
    target: str | None,
    window: str,
    step: str,
) -> LiveSource:
    """Raises: InvalidInputError for what is missing or out of range."""
    if not namespace:
        raise InvalidInputError("--namespace", namespace, "the namespace of the target")
    if not target:
        raise InvalidInputError("--target", target, "KIND/NAME, such as Deployment/llama-chat")
    window_seconds = parse_duration_seconds(window, "--window")
    step_seconds = parse_duration_seconds(step, "--step")
    if step_seconds < SHORTEST_STEP_SECONDS:
        raise InvalidInputError("--step", step, "1s or longer")
    longest = MOST_READINGS * step_seconds
    if not step_seconds <= window_seconds <= longest:
        allowed = f"{step} (--step) to {format_duration(longest)}, {MOST_READINGS} steps"
        raise InvalidInputError("--window", window, allowed)
    return LiveSource(
        config=config,
        access=access,
        namespace=namespace,
        target=target,
        window_seconds=window_seconds,
        step_seconds=step_seconds,
    )
