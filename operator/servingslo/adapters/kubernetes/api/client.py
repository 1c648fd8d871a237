"""Requests to the Kubernetes API: raw JSON in and out, the package's own errors.

Typed models would cost several times the memory and time, and only a few fields are read. Targets
may also be of any kind. So JSON stays raw.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import OpenApiException
from kubernetes.aio.config.config_exception import ConfigException
from yaml import YAMLError

from servingslo.adapters.kubernetes.api.fence import (
    DeadMansSwitch,
    Fence,
    FencedRequest,
    checked,
    namespace_of,
)
from servingslo.adapters.kubernetes.api.paths import ApiPath
from servingslo.errors import (
    ClusterError,
    ClusterUnavailableError,
    InvalidInputError,
    InvalidObjectError,
    NotFoundError,
    NotLeaderError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.parsing import parsed_json

# One object of the Kubernetes API, as decoded JSON; never leaves adapters/kubernetes.
KubeObject = Mapping[str, Any]

DEFAULT_TIMEOUT_SECONDS = 5.0
# A watch is requested to end after one scrape interval. While nothing changes, the server sends
# nothing, not even a bookmark (observed on 1.36). So only this end shows that a quiet stream is
# alive. Watched data is therefore never older than the tolerated silence.
WATCH_SECONDS = 15
WATCH_SILENCE_SECONDS = 20.0
# One object of a watch: etcd keeps 1.5 MiB, and JSON of Go writes `<` in six characters.
_LONGEST_EVENT_BYTES = 16 * 1024 * 1024
# Enough for the watches plus the concurrent reads of a tick.
_CONNECTIONS = 32
_USER_AGENT = "servingslo-operator"
_LONGEST_MESSAGE = 500
_TERMINATING = b"NamespaceTerminating"
# An admission webhook cannot be called, or denies with a status of its own choice: the API server
# answered, and wrote nothing.
# Source: Kubernetes, apiserver: util/webhook/error.go, admission/plugin/webhook/errors.
_BY_WEBHOOK = (b"failed calling webhook ", b"admission webhook ")


class Patch(StrEnum):
    """The patch types that the operator uses."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"


class KubeClient:
    """A connection to one API server.

    fence: checked before each write; None if every write is allowed.
    switch: ends the process if it is stopped during a write until after its lease has expired;
    None if it may continue.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        fence: Fence | None = None,
        switch: DeadMansSwitch | None = None,
    ) -> None:
        self._api = api
        self._timeout_seconds = float(timeout_seconds)
        self._fence = fence
        self._switch = switch

    def fenced(self, fence: Fence, switch: DeadMansSwitch | None) -> "KubeClient":
        """The same connection, with a permission check before each write."""
        return KubeClient(
            self._api, timeout_seconds=self._timeout_seconds, fence=fence, switch=switch
        )

    def patient(self, timeout_seconds: float) -> "KubeClient":
        """The same connection with another request timeout."""
        return KubeClient(
            self._api, timeout_seconds=timeout_seconds, fence=self._fence, switch=self._switch
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def get(self, path: ApiPath, query: Mapping[str, str] | None = None) -> KubeObject:
        """Get one object or one page of a list. Raises: ClusterError and its kinds."""
        return await self._request("GET", path, query=query)

    async def create(self, path: ApiPath, body: KubeObject) -> KubeObject:
        """Create an object. Raises: WriteConflictError if it exists; ClusterError otherwise."""
        return await self._request("POST", path, body=body)

    async def create_named(self, path: ApiPath, body: KubeObject) -> KubeObject:
        """Create an object of a kind that is created by its path, such as a Lease.

        Unlike a POST, the right to it can be limited to a name.
        Raises: WriteConflictError if it exists; ClusterError otherwise.
        """
        try:
            return await self._request("PUT", path, body=body)
        except InvalidObjectError as error:
            # An update has to name the version that it changes.
            raise WriteConflictError(str(error)) from error

    async def patch(
        self,
        path: ApiPath,
        body: KubeObject | Sequence[KubeObject],
        patch: Patch,
        *,
        field_manager: str | None = None,
    ) -> KubeObject:
        """Patch an object and return it.

        field_manager: the owner of the fields; by default from the user agent.
        Raises: WriteConflictError on 409; InvalidObjectError on 422, which is also the answer to a
        failed JSON Patch test; ClusterError otherwise.
        """
        query = None if field_manager is None else {"fieldManager": field_manager}
        return await self._request("PATCH", path, query=query, body=body, content_type=patch.value)

    @asynccontextmanager
    async def watch(
        self, path: ApiPath, query: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[KubeObject]]:
        """A stream of watch events, closed on leaving. Raises: ClusterError and its kinds."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout_seconds, sock_read=WATCH_SILENCE_SECONDS
        )
        with _translated("GET", path):
            response = await self._send("GET", path, {**query, "watch": "true"}, limit=timeout)
            try:
                if response.status >= 400:
                    raise _error("GET", path, response.status, await response.read())
                yield _events(path, response.response.content)
            finally:
                response.response.close()

    async def _request(
        self,
        method: str,
        path: ApiPath,
        *,
        query: Mapping[str, str] | None = None,
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        with _translated(method, path), self._permitted(method, namespace_of(path)) as limit:
            response = await self._send(
                method, path, query, limit=limit, body=body, content_type=content_type
            )
            data = await response.read()
            if response.status >= 400:
                raise _error(method, path, response.status, data)
            decoded = parsed_json(data)
        if not isinstance(decoded, dict):
            raise ClusterError(f"{method} {path}: the answer is no object")
        return decoded

    @contextmanager
    def permitted(self, namespace: str) -> Iterator[float]:
        """Seconds that a write in the namespace may take from now. Raises: NotLeaderError."""
        with self._permitted("POST", namespace) as seconds:
            yield seconds

    @contextmanager
    def _permitted(self, method: str, namespace: str) -> Iterator[float]:
        """Seconds that the request may take. Raises: NotLeaderError."""
        if self._fence is None or method == "GET":
            yield self._timeout_seconds
            return
        fence = self._fence
        seconds = fence.write_seconds(namespace)
        with (
            checked(lambda: fence.write_seconds(namespace)),
            nullcontext() if self._switch is None else self._switch.armed(seconds),
        ):
            yield min(self._timeout_seconds, seconds)

    async def _send(
        self,
        method: str,
        path: ApiPath,
        query: Mapping[str, str] | None,
        *,
        limit: float | aiohttp.ClientTimeout,
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        request = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        return await self._api.call_api(*request, _request_timeout=limit)


async def connect(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    identity: str = "",
) -> KubeClient:
    """Create a client from KUBECONFIG if it is set, else from the pod's ServiceAccount.

    Without both, the user's default kubeconfig is used. KUBECONFIG is read here because the library
    reads its default at import. kubeconfig, context: a file and a context of it to use instead.
    identity: of this process; the API server's audit log shows it in the user agent.
    Raises: InvalidInputError for a named kubeconfig that is missing or invalid;
    ClusterError if there is no configuration at all.
    """
    configuration = Configuration()
    named = kubeconfig or os.environ.get("KUBECONFIG")
    file = named or kubernetes_config.KUBE_CONFIG_DEFAULT_LOCATION
    in_cluster = not (named or context) and os.environ.get("KUBERNETES_SERVICE_HOST")
    source = "--kubeconfig" if kubeconfig else "KUBECONFIG" if named else "kubeconfig"
    if not in_cluster:
        _check_there(file, source, named=bool(named))
    try:
        if named or context:
            await kubernetes_config.load_kube_config(
                config_file=named,
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
        elif in_cluster:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        else:
            await kubernetes_config.load_kube_config(client_configuration=configuration)
    except (
        ConfigException, OSError, ValueError, TypeError, YAMLError, RecursionError,
    ) as error:  # fmt: skip
        if in_cluster:
            raise ClusterError(f"no usable ServiceAccount in this pod: {error}") from error
        raise InvalidInputError(source, file, f"a usable kubeconfig{_why(error)}") from error
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.retries = None
    # Like kopf: proxy settings of the environment are not meant for the API server. A kubeconfig
    # names its own proxy.
    configuration.client_session_kwargs = {"trust_env": False, "request_class": FencedRequest}
    api = ApiClient(configuration)
    api.user_agent = f"{_USER_AGENT} ({identity})" if identity else _USER_AGENT
    return KubeClient(api)


def _check_there(files: str, source: str, *, named: bool) -> None:
    """Refuse if none of the files exists; the library's own error would be misleading.

    Raises: InvalidInputError if the files were named, ClusterError for the default one.
    """
    if any(Path(file).expanduser().exists() for file in files.split(os.pathsep)):
        return
    if named:
        raise InvalidInputError(source, files, "a kubeconfig that exists")
    raise ClusterError(f"no Kubernetes configuration: {files} does not exist")


def _why(error: Exception) -> str:
    """The problem of a kubeconfig, in brackets; '' if the library failed on it.

    On an invalid file the library fails at its first access, with one of Python's own errors.
    """
    if isinstance(error, OSError):
        return f" ({error.strerror})" if error.strerror else ""
    told = isinstance(error, ConfigException | YAMLError) and str(error)
    return f" ({_brief(told.splitlines()[0])})" if told else ""


class _translated:  # noqa: N801  reads as a statement
    """Converts the libraries' exceptions into this package's own."""

    def __init__(self, method: str, path: str) -> None:
        self._what = f"{method} {path}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error.__cause__, NotLeaderError):
            raise error.__cause__
        if isinstance(error, TimeoutError | asyncio.TimeoutError):
            raise ClusterUnavailableError(f"{self._what}: no answer in time") from error
        if isinstance(error, aiohttp.ClientError | OSError):
            raise ClusterUnavailableError(f"{self._what}: {_unreached(error)}") from error
        if isinstance(error, OpenApiException | ConfigException | json.JSONDecodeError):
            raise ClusterError(f"{self._what}: {_brief(str(error))}") from error


def _unreached(error: Exception) -> str:
    """Why there is no answer; with address and cause if the connection failed."""
    if not isinstance(error, aiohttp.ClientConnectorError) or (error.errno or 0) <= 0:
        return _brief(str(error))
    return f"no connection to {error.host}:{error.port}: {os.strerror(error.errno or 0)}"


async def _events(path: str, content: aiohttp.StreamReader) -> AsyncIterator[KubeObject]:
    with _translated("GET", path):
        while line := await content.readline(max_line_length=_LONGEST_EVENT_BYTES):
            if line.strip():
                yield parsed_json(line)


def _error(method: str, path: str, status: int, data: bytes) -> ClusterError:
    message = f"{method} {path}: {status} {_message(data)}"
    kinds: dict[int, type[ClusterError]] = {
        401: PermissionDeniedError,
        403: PermissionDeniedError,
        404: NotFoundError,
        409: WriteConflictError,
        # The resourceVersion expired; the reader lists again.
        410: WriteConflictError,
        422: InvalidObjectError,
        429: ClusterUnavailableError,
    }
    if status == 403 and _TERMINATING in data:
        # Nothing can be created in a namespace that is being deleted: treat it as gone.
        return NotFoundError(message)
    kind = ClusterUnavailableError if status >= 500 else kinds.get(status, ClusterError)
    if kind is ClusterUnavailableError and any(words in data for words in _BY_WEBHOOK):
        return ClusterError(message)
    return kind(message)


def _message(data: bytes) -> str:
    try:
        decoded = parsed_json(data)
    except ValueError:
        return _brief(data.decode(errors="replace").strip())
    return _brief(str(decoded.get("message", "")) if isinstance(decoded, dict) else "")


def _brief(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
