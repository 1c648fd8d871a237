"""Credentials of requests to Prometheus, read from their files again for each request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from requests.auth import HTTPBasicAuth


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
