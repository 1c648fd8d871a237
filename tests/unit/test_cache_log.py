"""What the log says of a collection that the API server does not serve."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from servingslo.adapters.kubernetes.api.cache import ObjectCache
from servingslo.errors import NotFoundError

PODS, KEDA = "/api/v1/pods", "/apis/keda.sh/v1alpha1/scaledobjects"


class _Client:
    """Serves nothing."""

    async def get(self, path: str, _query: object) -> Any:
        """Raises: NotFoundError."""
        raise NotFoundError(f"GET {path}: 404 404 page not found")


@pytest.mark.parametrize(
    ("path", "absent", "level", "line"),
    [
        pytest.param(
            KEDA,
            {NotFoundError: "KEDA is not installed"},
            "INFO",
            f"KEDA is not installed: {KEDA} is not watched",
            id="optional",
        ),
        pytest.param(
            PODS,
            {},
            "WARNING",
            f"cache path={PODS} state='GET {PODS}: 404 404 page not found'",
            id="always-there",
        ),
    ],
)
async def test_an_optional_kind_that_is_absent_is_said_in_words(
    caplog: pytest.LogCaptureFixture, path: str, absent: Any, level: str, line: str
) -> None:
    """KEDA need not be installed; the API server has Pods."""
    caplog.set_level(logging.INFO)
    client: Any = _Client()
    cache: ObjectCache[int] = ObjectCache(client, path, lambda _item, _old: 1, absent=absent)
    task = asyncio.create_task(cache.run())
    async with asyncio.timeout(5.0):
        await cache.listed.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [(record.levelname, record.message) for record in caplog.records] == [(level, line)]
