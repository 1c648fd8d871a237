"""The few messages of KEDA's external scaler, in protobuf's encoding.

There are only four messages, of strings and numbers. A generated module would need a second
dependency, its runtime. Fields that are not needed, such as trigger metadata, are skipped.
Source: kedacore/keda v2.21.0, pkg/scalers/externalscaler/externalscaler.proto; protobuf.dev,
"Encoding".
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from servingslo.errors import InvalidInputError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Ten groups of seven bits hold 64.
_LONGEST_VARINT = 10
_FIXED_LENGTHS = {_FIXED64: 8, _FIXED32: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObjectRef:
    """The ScaledObject of a request."""

    namespace: str
    name: str


def read_reference(message: bytes) -> ScaledObjectRef:
    """Parse a ScaledObjectRef. Raises: InvalidInputError if it is invalid."""
    strings = {number: value for number, value in _fields(message) if number in {1, 2}}
    try:
        return ScaledObjectRef(
            name=strings.get(1, b"").decode(), namespace=strings.get(2, b"").decode()
        )
    except UnicodeDecodeError as error:
        raise InvalidInputError("ScaledObjectRef", "bytes", "UTF-8") from error


def read_metrics_request(message: bytes) -> ScaledObjectRef:
    """The reference of a GetMetricsRequest. Raises: InvalidInputError if it is invalid."""
    references = [value for number, value in _fields(message) if number == 1]
    return read_reference(references[-1] if references else b"")


def active(count: int) -> bytes:
    """An IsActiveResponse: whether at least one replica is wanted."""
    return _integer(1, int(count > 0))


def metric_spec(name: str, target: float) -> bytes:
    """A GetMetricSpecResponse of one metric; targetSize is for KEDA before 2.13."""
    return _message(1, _string(1, name) + _integer(2, round(target)) + _double(3, target))


def metric_value(name: str, value: float) -> bytes:
    """A GetMetricsResponse of one value; metricValue is for KEDA before 2.13."""
    return _message(1, _string(1, name) + _integer(2, round(value)) + _double(3, value))


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each field that is a string or a message; others are skipped."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _read_varint(message, at)
            continue
        if kind == _BYTES:
            length, at = _read_varint(message, at)
        elif kind in _FIXED_LENGTHS:
            length = _FIXED_LENGTHS[kind]
        else:
            raise InvalidInputError("message", f"wire type {kind}", "0, 1, 2 or 5")
        if at + length > len(message):
            raise InvalidInputError("message", f"field {number}", "a field that ends in it")
        if kind == _BYTES:
            yield number, message[at : at + length]
        at += length


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(message):
            break
        byte = message[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return value, at + place + 1
    raise InvalidInputError("message", "a number", "at most ten bytes that end in it")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _string(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def _integer(number: int, value: int) -> bytes:
    return _tag(number, _VARINT) + _varint(value) if value > 0 else b""


def _double(number: int, value: float) -> bytes:
    return _tag(number, _FIXED64) + struct.pack("<d", value)
