"""What the administrator states beside an address: credentials, and matchers of every query.

Credentials are read from their files again for each request. In a store of several clusters
(Thanos, Mimir, VictoriaMetrics, a managed one) the matchers say which of them is this one. Nothing
of what a tenant writes enters them.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from requests.auth import HTTPBasicAuth

from servingslo.errors import InvalidInputError


def authorization(
    bearer_token_file: str | None, username: str | None, password_file: str | None
) -> Callable[[requests.PreparedRequest], Any] | None:
    """What adds the Authorization header to a request; None without credentials."""
    if bearer_token_file:
        return _bearer(Path(bearer_token_file))
    if username and password_file:
        return _basic(username, Path(password_file))
    return None


def _bearer(token_file: Path) -> Callable[[requests.PreparedRequest], Any]:
    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = token_file.read_text(encoding="utf-8").strip()
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return authorize


def _basic(username: str, password_file: Path) -> Callable[[requests.PreparedRequest], Any]:
    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        password = password_file.read_text(encoding="utf-8").strip()
        HTTPBasicAuth(username, password)(request)
        return request

    return authorize


_ALLOWED = 'matchers as in PromQL, such as cluster="a", region=~"eu-.*"; not of __name__'
# In a value a quote and a backslash are escaped. Source: Prometheus, docs/querying/basics.md.
_ONE = r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\\n]|\\["\\])*)"\s*'
_WHOLE = re.compile(rf"(?:{_ONE},)*{_ONE},?\s*")
_EACH = re.compile(_ONE)
# Python's regular expressions have them, those of Prometheus do not. Source: RE2, Syntax.
_NOT_RE2 = re.compile(r"\(\?<?[=!]|\\[1-9]")


def checked(text: str) -> str:
    """The same matchers, each once and as PromQL writes it; '' for none.

    Raises: InvalidInputError for what Prometheus would refuse.
    """
    found = _EACH.findall(text)
    whole = not text.strip() or _WHOLE.fullmatch(text)
    if not whole or any(label == "__name__" for label, _, _ in found):
        raise InvalidInputError("--prometheus-matchers", text, _ALLOWED)
    for label, how, value in found:
        if how.endswith("~") and not _is_expression(value):
            allowed = f"a regular expression for {label} that Prometheus knows (RE2)"
            raise InvalidInputError("--prometheus-matchers", text, allowed)
    return ", ".join(dict.fromkeys(f'{label}{how}"{value}"' for label, how, value in found))


def _is_expression(value: str) -> bool:
    text = re.sub(r"\\(.)", r"\1", value)
    try:
        re.compile(text)
    except re.error:
        return False
    return not _NOT_RE2.search(text)
