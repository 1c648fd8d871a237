"""Send Prometheus one query at a time through PrometheusConnect, with a bound on everything.

Every error leaves this module as MetricsUnavailableError. PrometheusConnect drops the warnings of
an answer; a response hook keeps them and they are returned.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from servingslo.adapters.prometheus import refusals
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.credentials import authorization
from servingslo.adapters.prometheus.vectors import Vector, vector_document
from servingslo.errors import (
    AnswerTooLargeError,
    MetricsUnavailableError,
    QueryRefusedError,
    ReadingTooSlowError,
)
from servingslo.parsing import parsed_json

# Bounds the memory of one answer, which is four times as much while it is parsed: a histogram of
# 4,000 engines is about 20 MB.
MAX_ANSWER_BYTES = 32 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_TENANT_HEADER = "X-Scope-OrgID"
_RETRY_PAUSE_SECONDS = 0.2
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_TOLD_BYTES = 4096
_NO_TIME_LEFT = "the queries before it left it no time"
# Share of the timeout that is left for a query if no query came before it.
_WHOLE_RATIO = 0.99
# Source: Prometheus, web/api/v1: bad data (400), and an expression that cannot be executed (422).
# RFC 9110: a proxy allows no POST (405, 501), or no request so long (413, 414).
_REFUSED_STATUS = frozenset({400, 405, 413, 414, 422, 501})
# Limit of a query in a URL; a longer one is sent in a body. URL encoding makes it half as long
# again, and proxies accept lines of 8 kB.
# Source: nginx, large_client_header_buffers; Apache httpd, LimitRequestLine.
LONGEST_QUERY_CHARACTERS = 4500

Series = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of one query. warnings: why part of the data may be missing.

    histograms: native ones, which have no value.
    """

    result: Sequence[Any]
    warnings: tuple[str, ...] = ()
    histograms: Sequence[Any] = ()


class PrometheusClient:
    """One connection to Prometheus, for one thread at a time."""

    def __init__(
        self,
        config: PrometheusConfig,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._monotonic = monotonic
        self._sleep = sleep
        self._closed = False
        self._session = _BoundedSession(monotonic)
        self._session.verify = config.ca_file or True
        # Compressing a large answer takes Prometheus longer than sending it inside a cluster.
        headers = {"Accept-Encoding": "identity"}
        if config.tenant:
            headers[_TENANT_HEADER] = config.tenant
        # Without our own Retry the library would use one that turns 1 s into 10 s. With read=False
        # a timeout is raised as a timeout.
        self._prometheus = PrometheusConnect(
            url=config.url.rstrip("/"),
            headers=headers,
            retry=Retry(total=0, read=False),
            auth=authorization(
                config.bearer_token_file,
                config.basic_auth_username,
                config.basic_auth_password_file,
            ),
            session=self._session,
        )

    def query(self, promql: str, *, deadline: float, at_seconds: float | None = None) -> Answer:
        """The answer to an instant query, evaluated at a time of Prometheus's clock or now.

        deadline: on the monotonic clock, over all attempts.
        Raises: MetricsUnavailableError if there is no answer.
        """
        params = {} if at_seconds is None else {"time": f"{at_seconds:.3f}"}

        def ask(timeout: float) -> Any:
            return self._prometheus.custom_query(promql, params=params, timeout=timeout)

        return self._answer(ask, deadline)

    def query_range(
        self,
        promql: str,
        *,
        start_seconds: int,
        end_seconds: int,
        step_seconds: int,
        deadline: float,
    ) -> Answer:
        """The answer to a query evaluated at each step from start to end, both included.

        deadline: on the monotonic clock, over all attempts.
        Raises: MetricsUnavailableError if there is no answer.
        """
        start, end = (datetime.fromtimestamp(t, UTC) for t in (start_seconds, end_seconds))

        def ask(timeout: float) -> Any:
            return self._prometheus.custom_query_range(
                promql, start, end, str(step_seconds), timeout=timeout
            )

        return self._answer(ask, deadline)

    def _answer(self, ask: Callable[[float], Any], deadline: float) -> Answer:
        """The answer to a query with a timeout, with retries if necessary."""
        for attempt in range(self._config.retries + 1):
            left = deadline - self._monotonic()
            if self._closed:
                raise MetricsUnavailableError("the client is closed")
            if left <= 0:
                raise ReadingTooSlowError(_NO_TIME_LEFT)
            timeout = min(self._config.timeout_seconds, left)
            try:
                return self._attempt(ask, timeout)
            except _TooSlowError as slow:
                # A query with less time than its full timeout is not to blame itself.
                if timeout < _WHOLE_RATIO * self._config.timeout_seconds:
                    raise ReadingTooSlowError(_NO_TIME_LEFT) from slow
                raise MetricsUnavailableError(f"no answer within {timeout:.3g} s") from slow
            except _FailedAtOnce as failure:
                if attempt == self._config.retries:
                    raise failure.error from failure
                self._sleep(min(_RETRY_PAUSE_SECONDS * 2**attempt, timeout))
        raise MetricsUnavailableError("no attempt was allowed")

    def close(self) -> None:
        """Drop the connection; a running query in another thread is the last one."""
        self._closed = True
        self._prometheus.close()

    def _attempt(self, ask: Callable[[float], Any], timeout: float) -> Answer:
        """Make one attempt.

        Raises: _FailedAtOnce if a retry may help, _TooSlowError, MetricsUnavailableError.
        """
        self._session.expect(self._monotonic() + timeout)
        try:
            result = ask(timeout)
        except (requests.Timeout, ReadTimeoutError) as error:
            raise _TooSlowError from error
        except (requests.ConnectionError, HTTPError) as error:
            message = refusals.connection_words(self._config.url, error)
            raise _FailedAtOnce(MetricsUnavailableError(message)) from error
        except PrometheusApiClientException as error:
            status = self._session.status
            kind = QueryRefusedError if status in _REFUSED_STATUS else MetricsUnavailableError
            refused = kind(refusals.status_words(status, self._session.body))
            if status in _RETRIED_STATUS:
                raise _FailedAtOnce(refused) from error
            raise refused from error
        except (OSError, KeyError, TypeError, ValueError) as error:
            # OSError includes requests.RequestException and unreadable token files. The library
            # raises KeyError('data') and ValueError for an answer that is not from Prometheus.
            raise MetricsUnavailableError(self._no_answer(error)) from error
        native: Sequence[Any] = ()
        if isinstance(result, list):
            native = [one for one in result if _is_native(one)]
            result = [one for one in result if not _is_native(one)] if native else result
        elif not isinstance(result, Vector):
            raise MetricsUnavailableError(refusals.body_words(self._session.body))
        return Answer(result=result, warnings=self._session.warnings, histograms=native)

    def _no_answer(self, error: Exception) -> str:
        """The message for an error that is neither a connection failure nor a status."""
        if isinstance(error, OSError):
            files = {
                "--prometheus-bearer-token-file": self._config.bearer_token_file,
                "--prometheus-password-file": self._config.basic_auth_password_file,
                "--prometheus-ca-file": self._config.ca_file,
            }
            if told := refusals.file_words(error, files):
                return told
        if isinstance(error, requests.TooManyRedirects):
            return "it is redirected again and again: is this the address of Prometheus?"
        if self._session.status == requests.codes.ok:
            return refusals.body_words(self._session.body)
        return "the request could not be sent: is this the address of Prometheus?"


def _is_native(one: Any) -> bool:
    """Whether a series has native histograms and no value."""
    held = {*one} if isinstance(one, dict) else set()
    return bool(held & {"histogram", "histograms"}) and not held & {"value", "values"}


class _FailedAtOnce(Exception):  # noqa: N818 - a signal between two methods, never seen outside
    def __init__(self, error: MetricsUnavailableError) -> None:
        super().__init__(str(error))
        self.error = error


class _TooSlowError(Exception):
    """The body did not arrive in time."""


class _BoundedSession(requests.Session):
    """Reads each body under a deadline and a size limit, and keeps its status and warnings.

    The timeout of requests only limits one read from the socket; a slow, steady answer would never
    end.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._deadline = 0.0
        self.status = 0
        self.body = b""
        self.warnings: tuple[str, ...] = ()
        self.hooks["response"] = [self._read_body]

    def expect(self, deadline: float) -> None:
        """Set the deadline of the next answer and forget the last one."""
        self._deadline = deadline
        self.status = 0
        self.body = b""
        self.warnings = ()

    def request(self, method: str | bytes, url: str | bytes, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        """Like in requests, but the hook reads the body, and a long query is sent in the body."""
        kwargs["stream"] = True
        params = kwargs.get("params") or {}
        if len(params.get("query", "")) > LONGEST_QUERY_CHARACTERS:
            method, kwargs["data"] = "POST", kwargs.pop("params")
        return super().request(method, url, **kwargs)

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        """Like in requests, but the tenant is as little sent to another server as a credential."""
        super().rebuild_auth(prepared_request, response)  # type: ignore[no-untyped-call]
        old, new = response.request.url, prepared_request.url
        if self.should_strip_auth(old, new):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop(_TENANT_HEADER, None)

    def _read_body(self, response: requests.Response, **_: object) -> None:
        self.status = response.status_code
        body = bytearray()
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                response.close()
                told = f"an answer has more than {MAX_ANSWER_BYTES >> 20} MiB"
                raise AnswerTooLargeError(told, bytes(body))
            if self._monotonic() > self._deadline:
                response.close()
                raise _TooSlowError
        content = bytes(body)
        response._content = content  # noqa: SLF001 - requests has no public way to set a body
        response._content_consumed = True  # type: ignore[attr-defined]  # noqa: SLF001
        # Kept for error messages; only a proper answer is megabytes long.
        self.body = content[:_TOLD_BYTES]
        if response.status_code != requests.codes.ok:
            return
        with no_collection():
            parsed = vector_document(content) or parsed_json(content)
        if isinstance(parsed, Mapping) and parsed.get("status") == "error":
            # It may hold data, but not all. Source: Prometheus, docs/querying/api.md.
            told = refusals.status_words(response.status_code, self.body)
            raise MetricsUnavailableError(told)
        self.warnings = refusals.missing_words(parsed)
        # Parsed once, for both warnings and result.
        response.json = lambda **_kwargs: parsed  # type: ignore[method-assign]


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector while many small objects without cycles are created.

    It would scan all of them repeatedly: half of the time of a large answer.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
