"""Messages for a missing or partial answer, in terms of the address and the user's flags."""

from urllib.parse import urlsplit

from servingslo.parsing import parsed_json

MALFORMED = "an answer of Prometheus has a form that is not known here"
_LONGEST_WORDS = 200
# Warnings about series that a function skips because of their form, such as native histograms under
# the name of a counter. They concern only the exporter of such series; no other data is missing.
# Source: Prometheus, util/annotations, PromQLWarning and PromQLInfo.
_ABOUT_SERIES = ("PromQL warning", "PromQL info")
# VictoriaMetrics' cluster sets this field, without a warning, if not all of its storage nodes
# answered. Source: VictoriaMetrics, app/vmselect, -search.denyPartialResponse.
_PARTIAL_FIELD = "isPartial"
_ANOTHER_PAGE = "the answer is HTML, not JSON of Prometheus: is this its address, or a login page?"
_HINTS = {
    401: "it asks who you are: --prometheus-bearer-token-file, or --prometheus-username-file and "
    "--prometheus-password-file, or --prometheus-tenant in a store of several",
    403: "who you are may not query: check the token's or user's rights",
    404: "no Prometheus API there: the address ends where /api/v1 begins",
}
# Libraries' words about a connection failure, the most specific first, and their meaning.
_CONNECTION_SIGNS = {
    "Connection refused": "Connection refused: nothing listens there",
    "Name or service not known": "no such host name",
    "Temporary failure in name resolution": "the host name cannot be looked up now",
    "No address associated with hostname": "no such host name",
    "WRONG_VERSION_NUMBER": "it does not speak https: is http:// meant?",
    "CERTIFICATE_VERIFY_FAILED": "CERTIFICATE_VERIFY_FAILED: give its authority by "
    "--prometheus-ca-file",
    "Connection reset": "Connection reset",
    "Remote end closed connection": "it closed the connection without an answer",
    "Connection aborted": "Connection aborted",
    "No route to host": "no route to the host",
    "Network is unreachable": "the network is unreachable",
}


def connection_words(url: str, error: BaseException) -> str:
    """Why there is no connection; the library's own text repeats the whole query."""
    text = str(error)
    cause = next((told for sign, told in _CONNECTION_SIGNS.items() if sign in text), "it broke off")
    return f"no connection to {urlsplit(url).netloc}: {cause}"


def status_words(status: int, body: bytes) -> str:
    """The message for an error status: a hint for the usual ones, else Prometheus's own words."""
    return ": ".join(
        part for part in (f"HTTP {status}", _HINTS.get(status) or _words(body)) if part
    )


def body_words(body: bytes) -> str:
    """Why a body with a success status is no answer."""
    text = body.lstrip()
    if not text:
        return "the answer is empty: is this the address of Prometheus?"
    if text.startswith(b"<"):
        return _ANOTHER_PAGE
    try:
        parsed_json(text)
    except ValueError:
        return "the answer is not JSON of Prometheus: is this its address?"
    return "the answer is JSON, but not of Prometheus: is this its address?"


def missing_words(parsed: object) -> tuple[str, ...]:
    """Why part of the data may be missing from a parsed answer, in the server's own words."""
    if not isinstance(parsed, dict):
        return ()
    told = parsed.get("warnings") or ()
    words = [told] if isinstance(told, str) else [str(one) for one in told]
    missing = [one for one in words if not one.startswith(_ABOUT_SERIES)]
    data = parsed.get("data")
    marks = (part.get(_PARTIAL_FIELD) for part in (parsed, data) if isinstance(part, dict))
    if any(str(mark).lower() == "true" for mark in marks):
        missing.append(f"the answer is marked as partial ({_PARTIAL_FIELD})")
    return tuple(dict.fromkeys(missing))


def file_words(error: OSError, files: dict[str, str | None]) -> str:
    """The configured file that could not be read, by its flag; '' if the error concerns none.

    files: by flag.
    """
    for flag, path in files.items():
        if path and (error.filename == path or path in str(error)):
            return f"{flag}: {path} {'does not exist' if _is_missing(error) else 'cannot be read'}"
    return ""


def _is_missing(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError) or "invalid path" in str(error)


def _words(body: bytes) -> str:
    """The error text of Prometheus or a proxy; for an HTML page, only that it is one."""
    text = body.decode("utf-8", errors="replace").strip()
    if text.startswith("<"):
        return _ANOTHER_PAGE
    try:
        decoded = parsed_json(text)
    except ValueError:
        return text[:_LONGEST_WORDS]
    told = decoded.get("error") if isinstance(decoded, dict) else None
    return str(told)[:_LONGEST_WORDS] if told else ""
