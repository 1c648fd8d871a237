"""The gRPC server that KEDA's operator asks for a ScaledObject's replica count.

The port is open only while this process leads. A client that is sent to a standby is refused and
retries until it reaches the leader. On an error, KEDA's fallback applies.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from servingslo.errors import (
    InvalidInputError,
    MetricsUnavailableError,
    NotFoundError,
    ServingSLOError,
)
from servingslo.features.keda_scaler import wire

_LOG = logging.getLogger(__name__)
SERVICE = "externalscaler.ExternalScaler"
METRIC_NAME = "desired-replicas"
# With metricType AverageValue, KEDA's default, the replica count is the value.
TARGET_SIZE = 1.0
# Each ScaledObject holds one stream. Streams beyond this, or older than an hour, must reconnect.
MOST_STREAMS = 512
STREAM_SECONDS = 3600.0
_STREAM_POLL_SECONDS = 5.0
_LEADING_POLL_SECONDS = 0.5
_LARGEST_MESSAGE_BYTES = 65_536
# On one connection, streams included. KEDA's operator makes only one connection.
_MOST_CALLS = 1024

# The replica count for a ScaledObject, by its namespace and name. Raises: NotFoundError if no
# ServingSLO plans it; MetricsUnavailableError while it is not known.
Counts = Callable[[wire.ScaledObjectRef], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerOptions:
    """The listening address and TLS files. Without a certificate: plain text.

    client_ca_file: CA of the allowed clients; None: every client that can reach the port.
    """

    host: str
    port: int
    certificate_file: Path | None
    key_file: Path | None
    client_ca_file: Path | None = None


class ExternalScaler:
    """Serves KEDA while `leads` is true."""

    def __init__(
        self, options: ScalerOptions, counts: Counts, leads: Callable[[], bool] = lambda: True
    ) -> None:
        self._options = options
        self._counts = counts
        self._leads = leads
        self._server: grpc.aio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._streams = 0
        self.port = options.port

    async def start(self) -> None:
        """Serve while leading. Raises: InvalidInputError for files without a certificate."""
        if self._options.certificate_file is not None:
            _certificate(self._options)
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Close the port."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._close()

    async def _follow(self) -> None:
        while True:
            if self._leads() and self._server is None:
                await self._open()
            elif not self._leads():
                await self._close()
            await asyncio.sleep(_LEADING_POLL_SECONDS)

    async def _open(self) -> None:
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _LARGEST_MESSAGE_BYTES),
                ("grpc.max_concurrent_streams", _MOST_CALLS),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        methods = {
            "IsActive": grpc.unary_unary_rpc_method_handler(self._is_active),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(self._stream_is_active),
            "GetMetricSpec": grpc.unary_unary_rpc_method_handler(self._metric_spec),
            "GetMetrics": grpc.unary_unary_rpc_method_handler(self._metrics),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        address = f"{self._options.host}:{self.port}"
        try:
            if self._options.certificate_file is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, _credentials(self._options))
            await server.start()
        except (RuntimeError, OSError, InvalidInputError) as error:
            _LOG.warning("external scaler not served address=%s detail=%r", address, str(error))
            return
        self._server = server
        _LOG.info("serving KEDA's external scaler port=%d", self.port)

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def _is_active(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return wire.active(await self._count(wire.read_reference, message, context))

    async def _metric_spec(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """The metric and its target; the same for every ScaledObject."""
        await _read(wire.read_reference, message, context)
        return wire.metric_spec(METRIC_NAME, TARGET_SIZE)

    async def _metrics(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        count = await self._count(wire.read_metrics_request, message, context)
        return wire.metric_value(METRIC_NAME, float(count))

    async def _stream_is_active(
        self, message: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Whether it is active: now and at each change; no message while it is not known."""
        reference = await _read(wire.read_reference, message, context)
        if self._streams >= MOST_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")
        self._streams += 1
        try:
            told = b"unknown"
            for _ in range(round(STREAM_SECONDS / _STREAM_POLL_SECONDS)):
                with suppress(ServingSLOError):
                    now = wire.active(self._counts(reference))
                    if now != told:
                        told = now
                        yield now
                await asyncio.sleep(_STREAM_POLL_SECONDS)
        finally:
            self._streams -= 1

    async def _count(
        self,
        read: Callable[[bytes], wire.ScaledObjectRef],
        message: bytes,
        context: grpc.aio.ServicerContext,
    ) -> int:
        reference = await _read(read, message, context)
        try:
            return self._counts(reference)
        except NotFoundError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except MetricsUnavailableError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError  # abort() raises


async def _read(
    read: Callable[[bytes], wire.ScaledObjectRef], message: bytes, context: grpc.aio.ServicerContext
) -> wire.ScaledObjectRef:
    try:
        return read(message)
    except InvalidInputError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    raise AssertionError  # abort() raises


def _credentials(options: ScalerOptions) -> grpc.ServerCredentials:
    """Credentials that read the files at each handshake, so that certificates may rotate."""

    def now() -> grpc.ServerCertificateConfiguration | None:
        with suppress(InvalidInputError):
            return _certificate(options)
        return None

    return grpc.dynamic_ssl_server_credentials(
        _certificate(options),
        now,
        require_client_authentication=options.client_ca_file is not None,
    )


def _certificate(options: ScalerOptions) -> grpc.ServerCertificateConfiguration:
    def content(path: Path | None, field: str) -> bytes:
        try:
            return b"" if path is None else path.read_bytes()
        except OSError as error:
            raise InvalidInputError(field, str(path), "a readable file") from error

    if options.key_file is None:
        raise InvalidInputError("--keda-scaler-key-file", None, "the certificate's key")
    pair = (
        content(options.key_file, "--keda-scaler-key-file"),
        content(options.certificate_file, "--keda-scaler-certificate-file"),
    )
    authority = content(options.client_ca_file, "--keda-scaler-client-ca-file") or None
    return grpc.ssl_server_certificate_configuration([pair], authority)
