"""kopf's part: log in, start and stop the loop, watch the resources and wake the loop.

Only handlers of raw events: they need neither finalizers nor annotations. So an operator that is
gone blocks no deletion and leaves no trace on a resource.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import kopf

from servingslo.adapters.kubernetes.api.client import WATCH_SECONDS, WATCH_SILENCE_SECONDS
from servingslo.adapters.kubernetes.resources import resource_record
from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION
from servingslo.controller.loop import Controller
from servingslo.controller.registry import Registry
from servingslo.errors import InvalidInputError

_LOG = logging.getLogger(__name__)
# Retries of kopf's own requests. The last is repeated without end: a namespace that refuses, such
# as one that was deleted with its Role, would otherwise end the process for all others.
_BACKOFFS_SECONDS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
_ANNOTATION_PREFIX = "kopf.servingslo.dev"


@dataclass(slots=True)
class Operator:
    """State shared by the handlers.

    controller: opens everything the loop needs and yields the loop; closed at the end. stop: set to
    end the operator. failure: why the loop ended by itself.
    """

    registry: Registry
    controller: Callable[[], AbstractAsyncContextManager[Controller]]
    stop: asyncio.Event
    failure: BaseException | None = None
    _closing: AbstractAsyncContextManager[None] | None = field(default=None, repr=False)

    async def start(self) -> None:
        """Open the outside world and start the loop; end the operator if its input is invalid.

        After any other error kopf tries again.
        """
        self._closing = self._running()
        try:
            await self._closing.__aenter__()
        except InvalidInputError as error:
            self._closing = None
            self.failure = error
            self.stop.set()

    async def end(self) -> None:
        """Stop the loop and close everything."""
        # kopf leaves its waiter for this event behind, and would wait five seconds for it.
        self.stop.set()
        if self._closing is not None:
            await self._closing.__aexit__(None, None, None)
            self._closing = None
            if self.failure is None:
                _LOG.info("stopped")

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with self.controller() as controller:
            task = asyncio.create_task(controller.run(), name="control loop")
            task.add_done_callback(self._ended)
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the operator if the loop ends by itself, so that it is restarted."""
        if not task.cancelled():
            self.failure = task.exception()
            self.stop.set()


def pod_server(environment: Mapping[str, str], *, otherwise: str) -> str:
    """Where a pod reaches the API server, from its environment, as the operator's own client does.

    kopf takes a name of the cluster's DNS, which a pod on the host's network may not resolve.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if not host:
        return otherwise
    bracketed = f"[{host}]" if ":" in host else host
    return f"https://{bracketed}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"


def handlers_of(operator: Operator) -> kopf.OperatorRegistry:
    """The registry of all handlers of one operator."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)  # type: ignore[untyped-decorator]
    def log_in(**details: Any) -> kopf.ConnectionInfo | None:
        # The same order as the operator's own client: KUBECONFIG if it is set, then the pod.
        if os.environ.get("KUBECONFIG"):
            return kopf.login_with_kubeconfig(**details)
        pod = kopf.login_with_service_account(**details)
        if pod is not None:
            return replace(pod, server=pod_server(os.environ, otherwise=pod.server))
        return kopf.login_with_kubeconfig(**details)

    @kopf.on.startup(registry=registry)  # type: ignore[untyped-decorator]
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await operator.start()
        # Kopf sets its own while this opens the outside world.
        stop_on_signals(operator.stop)

    @kopf.on.cleanup(registry=registry)  # type: ignore[untyped-decorator]
    async def end(**_: Any) -> None:
        await operator.end()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)  # type: ignore[untyped-decorator]
    async def changed(event: Mapping[str, Any], body: Mapping[str, Any], **_: Any) -> None:
        record = resource_record(body)
        if event.get("type") == "DELETED" or record.deleting:
            operator.registry.remove((record.ref.namespace, record.ref.name), record.ref.uid)
        else:
            operator.registry.upsert(record)

    return registry


def stop_on_signals(stop: asyncio.Event) -> None:
    """End on SIGTERM or SIGINT, however many come: kopf's own handlers fail at the second."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


class _Backoffs:
    """Seconds between the attempts of a request; each request begins anew."""

    def __iter__(self) -> Iterator[float]:
        return chain(_BACKOFFS_SECONDS, repeat(_BACKOFFS_SECONDS[-1]))


def configure(settings: kopf.OperatorSettings) -> None:
    """Settings with which kopf only watches."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.background.instant_exit_timeout = 0.5
    settings.background.cancellation_polling = 2.0
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.networking.error_backoffs = _Backoffs()
    # A whole number: kopf puts it into the query unchanged, and the API server refuses 60.0.
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.inactivity_timeout = WATCH_SILENCE_SECONDS
    settings.watching.connect_timeout = 5.0
    # Never written, because no handler has progress. It is set anyway, so that a later one cannot
    # collide with the annotations of other operators.
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
        prefix=_ANNOTATION_PREFIX
    )
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=_ANNOTATION_PREFIX
    )
