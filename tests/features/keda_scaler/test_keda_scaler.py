"""The external scaler as KEDA's operator sees it: a gRPC client over TLS."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from servingslo.errors import MetricsUnavailableError, NotFoundError
from servingslo.features.keda_scaler import wire

grpc = pytest.importorskip("grpc", reason="the extra `keda` is not installed")

from servingslo.features.keda_scaler import scaler as served  # noqa: E402 - after the skip

DATA = Path(__file__).parents[2] / "integration" / "data"
CERTIFICATE, AUTHORITY = DATA / "loopback.pem", DATA / "loopback-ca.pem"
TIMEOUT_SECONDS = 10.0


def _reference(name: str, namespace: str = "team", metadata: bytes = b"") -> bytes:
    parts = ((1, name.encode()), (2, namespace.encode()))
    return b"".join(bytes([n << 3 | 2, len(v)]) + v for n, v in parts) + metadata


def _request(reference: bytes) -> bytes:
    return bytes([1 << 3 | 2, len(reference)]) + reference


class _Counts:
    """Counts by ScaledObject; None while unknown."""

    def __init__(self, **counts: int | None) -> None:
        self.counts = counts
        self.asked: list[wire.ScaledObjectRef] = []

    def __call__(self, asked: wire.ScaledObjectRef) -> int:
        self.asked.append(asked)
        if asked.name not in self.counts:
            raise NotFoundError(f"no ScaledObject {asked.namespace}/{asked.name} is known")
        count = self.counts[asked.name]
        if count is None:
            raise MetricsUnavailableError("no count now")
        return count


@asynccontextmanager
async def _serving(counts, *, plain=False, leads=lambda: True):
    options = served.ScalerOptions(
        host="127.0.0.1",
        port=0,
        certificate_file=None if plain else CERTIFICATE,
        key_file=None if plain else CERTIFICATE,
    )
    scaler = served.ExternalScaler(options, counts, leads)
    await scaler.start()
    try:
        for _ in range(200):
            await asyncio.sleep(0.02)
            if scaler.port:
                break
        yield scaler
    finally:
        await scaler.stop()


def _channel(scaler, *, plain=False):
    address = f"127.0.0.1:{scaler.port}"
    if plain:
        return grpc.aio.insecure_channel(address)
    trusted = grpc.ssl_channel_credentials(AUTHORITY.read_bytes())
    return grpc.aio.secure_channel(address, trusted)


async def _call(channel, method, message):
    call = channel.unary_unary(f"/{served.SERVICE}/{method}")
    return await call(message, timeout=TIMEOUT_SECONDS)


async def test_keda_is_given_the_count_over_tls():
    """A spec with target 1, and the count as its value: the HPA makes of it just that count."""
    counts = _Counts(chat=11)
    async with _serving(counts) as scaler, _channel(scaler) as channel:
        spec = await _call(channel, "GetMetricSpec", _reference("chat"))
        assert spec == wire.metric_spec(served.METRIC_NAME, 1.0)
        for count in (11, 12, 11):
            counts.counts["chat"] = count
            value = await _call(channel, "GetMetrics", _request(_reference("chat")))
            assert value == wire.metric_value(served.METRIC_NAME, float(count))
        assert await _call(channel, "IsActive", _reference("chat")) == wire.active(3)
    assert {(one.namespace, one.name) for one in counts.asked} == {("team", "chat")}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("other", "NOT_FOUND", id="nobody-gives"),
        pytest.param("blind", "UNAVAILABLE", id="no-count"),
    ],
)
async def test_where_there_is_no_count_keda_gets_an_error(name, code):
    """An error leads to KEDA's fallback; a zero would scale to it."""
    counts = _Counts(chat=3, blind=None)
    async with _serving(counts) as scaler, _channel(scaler) as channel:
        for method, message in (
            ("GetMetrics", _request(_reference(name))),
            ("IsActive", _reference(name)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await _call(channel, method, message)
            assert failed.value.code().name == code


async def test_nonsense_is_refused():
    """As an invalid argument; the server goes on."""
    async with _serving(_Counts(chat=3)) as scaler, _channel(scaler) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await _call(channel, "IsActive", b"\xff" * 11)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await _call(channel, "IsActive", _reference("chat")) == wire.active(3)


async def test_updated_specs_are_not_pushed():
    """KEDA falls back to asking where the method is not implemented."""
    async with _serving(_Counts(chat=3)) as scaler, _channel(scaler) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await _call(channel, "StreamMetricSpec", _reference("chat"))
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_stream_tells_at_once_and_streams_are_bounded(monkeypatch):
    """The first answer comes with the stream; one stream more than allowed is refused."""
    monkeypatch.setattr(served, "MOST_STREAMS", 1)
    async with (
        _serving(_Counts(chat=3), plain=True) as scaler,
        _channel(scaler, plain=True) as channel,
        _channel(scaler, plain=True) as second,
    ):
        stream = channel.unary_stream(f"/{served.SERVICE}/StreamIsActive")(_reference("chat"))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await stream.read() == wire.active(3)
        further = second.unary_stream(f"/{served.SERVICE}/StreamIsActive")(_reference("chat"))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await further.read()
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stream.cancel()


async def _asked_until_it_fails(channel):
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            await _call(channel, "IsActive", _reference("chat"))
            await asyncio.sleep(served._LEADING_POLL_SECONDS / 10.0)


async def test_only_the_leader_answers():
    """A standby's port is closed, and the port of one that lost the lead too."""
    leading = True
    async with (
        _serving(_Counts(chat=3), leads=lambda: leading) as scaler,
        _channel(scaler) as channel,
    ):
        assert await _call(channel, "IsActive", _reference("chat")) == wire.active(3)
        leading = False
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await _asked_until_it_fails(channel)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_plain_text_is_refused_where_tls_is_served():
    """A client that does not speak TLS gets nothing."""
    async with _serving(_Counts(chat=3)) as scaler, _channel(scaler, plain=True) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await _call(channel, "IsActive", _reference("chat"))
