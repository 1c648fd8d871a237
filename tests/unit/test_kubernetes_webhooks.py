"""What an admission webhook does to a write: the API server answered, and nothing was written."""

import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from servingslo.adapters.kubernetes.api.client import KubeClient, Patch
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.controller.reporting.outage import Outages
from servingslo.errors import ClusterError, ClusterUnavailableError

PATH = api_path("apps/v1", "deployments", namespace="inference", name="llama")
GONE = (
    'Internal error occurred: failed calling webhook "v.example.com": failed to call webhook: '
    'Post "https://policy.test.svc:443/?timeout=10s": no endpoints available for service "policy"'
)
DENIED = 'admission webhook "v.example.com" denied the request: the policy is being loaded'
BUSY = "the server is currently unable to handle the request"


async def _refused(status: int, message: str) -> ClusterError:
    """The error of a write that is answered so."""

    async def answer(_: web.Request) -> web.Response:
        body = {"kind": "Status", "reason": "InternalError", "message": message, "code": status}
        return web.json_response(body, status=status)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        api = ApiClient(Configuration(host=str(server.make_url("")).rstrip("/")))
        try:
            with pytest.raises(ClusterError) as refused:
                await KubeClient(api).patch(PATH, {"spec": {}}, Patch.MERGE)
        finally:
            await api.close()
    return refused.value


@pytest.mark.parametrize(
    ("status", "message"),
    [(500, GONE), (500, DENIED), (503, DENIED), (429, DENIED)],
    ids=["gone", "denied-500", "denied-503", "denied-429"],
)
async def test_a_write_that_a_webhook_refuses_is_no_outage(
    caplog: pytest.LogCaptureFixture, status: int, message: str
) -> None:
    """Other writes go on: it is told of this resource, with the webhook's name."""
    error = await _refused(status, message)
    assert not isinstance(error, ClusterUnavailableError)
    with caplog.at_level(logging.WARNING):
        Outages().met(("status", "inference/llama"), error, 0.0)
    (line,) = caplog.messages
    assert line.startswith("status refused resource=inference/llama")
    assert "v.example.com" in line


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_api_server_without_an_answer_is_away(status: int) -> None:
    """Its own errors say nothing of what was written."""
    assert isinstance(await _refused(status, BUSY), ClusterUnavailableError)
