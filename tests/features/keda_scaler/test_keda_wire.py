"""Messages of KEDA's external scaler, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.errors import InvalidInputError
from servingslo.features.keda_scaler import wire


def _reference(name: str, namespace: str, metadata: bytes = b"") -> bytes:
    parts = ((1, name.encode()), (2, namespace.encode()))
    return b"".join(bytes([n << 3 | 2, len(v)]) + v for n, v in parts) + metadata


def test_a_reference_is_read_and_its_metadata_is_not():
    """What a trigger's author writes into metadata cannot point elsewhere."""
    metadata = bytes([3 << 3 | 2, 4]) + b"\x0a\x02hi"
    found = wire.read_reference(_reference("chat", "team", metadata))
    assert (found.namespace, found.name) == ("team", "chat")


def test_the_reference_of_a_request_for_metrics_is_read():
    """It lies one level deeper, beside the metric's name."""
    inner = _reference("chat", "team")
    message = bytes([1 << 3 | 2, len(inner)]) + inner + bytes([2 << 3 | 2, 1]) + b"m"
    assert wire.read_metrics_request(message) == wire.ScaledObjectRef(namespace="team", name="chat")


def test_answers_are_encoded_as_protobuf_does():
    """Bytes by hand from the encoding's own page."""
    assert wire.active(3) == b"\x08\x01"
    assert wire.active(0) == b""
    head = b"\x0a\x0e\x0a\x01m"
    eleven = head + b"\x10\x0b" + b"\x19\x00\x00\x00\x00\x00\x00\x26\x40"
    one = head + b"\x10\x01" + b"\x19\x00\x00\x00\x00\x00\x00\xf0\x3f"
    assert wire.metric_value("m", 11.0) == eleven
    assert wire.metric_spec("m", 1.0) == one
    # A count beyond one group of seven bits.
    assert b"\x10\xac\x02" in wire.metric_value("m", 300.0)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x0a\x05ab", id="cut-off"),
        pytest.param(b"\x0a", id="no-length"),
        pytest.param(b"\xff" * 11, id="endless-number"),
        pytest.param(b"\x0b\x00", id="group"),
        pytest.param(b"\x0a\x02\xff\xfe", id="no-utf8"),
    ],
)
def test_what_is_no_message_is_refused(message):
    """With an error of ours, that becomes INVALID_ARGUMENT."""
    with pytest.raises(InvalidInputError):
        wire.read_reference(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_reference_or_refused(message):
    """Never another exception, whatever is sent."""
    try:
        found = wire.read_reference(message)
    except InvalidInputError:
        return
    assert isinstance(found.name, str)
