"""Pack values that only machines read into one string of a status: base64 of zlib of JSON.

`kubectl describe` prints one line for each leaf of an object. A hundred numbers that nobody reads
would hide the ten that users look for.
"""

import base64
import binascii
import json
import zlib
from typing import Any

from servingslo.parsing import written_json

# The operator packs 8 KiB at most; a longer value was not packed by the operator.
_MOST_BYTES = 64 * 1024


def packed(value: Any) -> str:
    """The JSON value as one string without line breaks."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), level=9)).decode()


def unpacked(text: str) -> Any:
    """The value of a string that `packed` returned.

    Raises: ValueError if the string is invalid or contains more than 64 KiB.
    """
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError("not a packed value") from error
    if not unzip.eof:
        raise ValueError(f"a packed value that is cut off or of more than {_MOST_BYTES} bytes")
    return written_json(data)
