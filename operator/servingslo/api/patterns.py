"""What names and shares of the spec look like."""

from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator

from servingslo.api.constraints import Matching, not_allowed
from servingslo.runtimes.catalogue import AUTO_RUNTIME

DNS_LABEL = Matching(
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a DNS label (lower case letters, digits, -)", 63
)
DNS_NAME = Matching(
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    "a DNS name (lower case letters, digits, - and .)",
    253,
)
API_VERSION_NAME = Matching(
    r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$", "an API version such as apps/v1", 253
)
KIND_NAME = Matching(r"^[A-Z][A-Za-z0-9]*$", "a kind such as Deployment", 63)
RUNTIME_PATTERN = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
RUNTIME_LETTERS, RUNTIME_LENGTH = "lower case letters, digits, - and .", 63
# An administrator may have added some, so that the API server takes any name and the operator
# refuses one that it does not know.
RUNTIME_NAME = Matching(
    f"^({AUTO_RUNTIME}|{RUNTIME_PATTERN})$",
    f"{AUTO_RUNTIME}, or the name of a runtime ({RUNTIME_LETTERS})",
    RUNTIME_LENGTH,
)
MODEL_NAME = Matching(r"^[A-Za-z0-9][-A-Za-z0-9_.]*$", "letters, digits, -, _ and .", 253)
PRODUCT = Matching(r"^[A-Za-z0-9][-A-Za-z0-9_./ ]*$", "letters, digits, spaces, -, _, . and /", 253)
SHARE = Matching(r"^(5[0-9]|[6-9][0-9])([.][0-9]{1,3})?%$", "a share from 50% to 99.999%", 16)
LABEL_KEY = Matching(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    "the name of a label (such as team or example.com/team)",
    317,
)
LABEL_VALUE = Matching(
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
    "the value of a label (up to 63 letters, digits, -, _ and .)",
    63,
)
_ZONE_WORDS = "a time zone of the IANA database, such as Europe/Berlin"


def _known_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise not_allowed(_ZONE_WORDS) from None
    return zone


TIME_ZONE = Annotated[
    str,
    Matching(r"^[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$", _ZONE_WORDS, 64),
    AfterValidator(_known_zone),
]
CURRENCY_CODE = Matching(r"^[A-Z]{3}$", "a currency of three capital letters such as USD", 8)


def ratio_of_share(text: str) -> float:
    """'99.5%' as a ratio; a target has three decimals at most, a quotient of floats more."""
    return round(float(text.removesuffix("%")) / 100.0, 6)
