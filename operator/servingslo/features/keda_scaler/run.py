"""Flags of `servingslo run` for KEDA's external scaler, and how it is started."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from servingslo.cli.running.feature_flags import Serving
from servingslo.cli.running.switch import Switch
from servingslo.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class ScalerFlags:
    """How the scaler is served; without a port it is not."""

    keda_scaler_port: Annotated[
        int | None,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_PORT",
            help="Port of KEDA's external scaler (gRPC); none by default. Needs the extra `keda`, "
            "and a certificate or --keda-scaler-plain-text.",
            min=0,
            max=65535,
        ),
    ] = None
    keda_scaler_host: Annotated[
        str, typer.Option(envvar="SERVINGSLO_KEDA_SCALER_HOST", help="Address of the scaler.")
    ] = "127.0.0.1"
    keda_scaler_certificate_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_CERTIFICATE_FILE",
            help="The scaler's certificate; read again at each handshake.",
        ),
    ] = None
    keda_scaler_key_file: Annotated[
        Path | None,
        typer.Option(envvar="SERVINGSLO_KEDA_SCALER_KEY_FILE", help="The certificate's key."),
    ] = None
    keda_scaler_client_ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_CLIENT_CA_FILE",
            help="Certificate authority of the clients that may ask; any client by default.",
        ),
    ] = None
    keda_scaler_plain_text: Annotated[
        Switch,
        typer.Option(
            envvar="SERVINGSLO_KEDA_SCALER_PLAIN_TEXT",
            help="Whether the scaler is served without TLS.",
        ),
    ] = Switch.OFF


class ScalerRun:
    """Answers KEDA while this process leads."""

    flags = ScalerFlags
    gives_counts = True

    def options(self, flags: ScalerFlags, deciders: int) -> ScalerFlags | None:
        """The flags.

        Raises: InvalidInputError for neither a certificate nor plain text; for clients' authority
        with plain text; if several pods decide, because KEDA's client asks any one of them, which
        knows only the counts of its own.
        """
        if flags.keda_scaler_port is None:
            return None
        files = (flags.keda_scaler_certificate_file, flags.keda_scaler_key_file)
        if None in files and flags.keda_scaler_plain_text is not Switch.ON:
            raise InvalidInputError(
                "--keda-scaler-certificate-file",
                flags.keda_scaler_certificate_file,
                "with --keda-scaler-key-file, or --keda-scaler-plain-text on",
            )
        if None in files and flags.keda_scaler_client_ca_file is not None:
            raise InvalidInputError(
                "--keda-scaler-client-ca-file",
                str(flags.keda_scaler_client_ca_file),
                "only with a certificate: plain text asks no client for one",
            )
        if deciders > 1:
            raise InvalidInputError(
                "--keda-scaler-port", flags.keda_scaler_port, "none if several pods decide"
            )
        return flags

    async def start(self, options: ScalerFlags, serving: Serving) -> None:
        """Serve it. Raises: InvalidInputError without the extra `keda`."""
        try:
            # Of the extra `keda`, which nothing else needs.
            from servingslo.features.keda_scaler.scaler import (  # noqa: PLC0415
                ExternalScaler,
                ScalerOptions,
            )
        except ImportError as error:
            raise InvalidInputError(
                "--keda-scaler-port",
                options.keda_scaler_port,
                "with the extra `keda` installed (grpcio)",
            ) from error
        from servingslo.features.keda_scaler.counts import ScaledObjectCounts  # noqa: PLC0415

        counts = ScaledObjectCounts(
            scaled_object=serving.inventory.scaled_objects.get,
            registry=serving.registry,
            handed_over=serving.handed_over,
        )
        scaler = ExternalScaler(
            ScalerOptions(
                host=options.keda_scaler_host,
                port=options.keda_scaler_port or 0,
                certificate_file=options.keda_scaler_certificate_file,
                key_file=options.keda_scaler_key_file,
                client_ca_file=options.keda_scaler_client_ca_file,
            ),
            lambda asked: counts.count(asked.namespace, asked.name),
            serving.leads,
        )
        serving.stack.push_async_callback(scaler.stop)
        await scaler.start()


PART = ScalerRun()
