"""The reader while Prometheus, or what stands before it, is in trouble; and its credentials."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.prometheus_pods import (
    NAMESPACE,
    answered,
    read_once,
    read_until,
    reader_of,
)
from tests.integration.prometheus_world import proxying

from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.policy.ports import ClusterMetrics
from servingslo.reasons import Reason

DATA = Path(__file__).parent / "data"
pytestmark = pytest.mark.rig


def _assert_unavailable(found: ClusterMetrics, *words: str) -> None:
    assert found.pods == {}
    assert found.problem is not None
    assert found.problem.reason is Reason.PROMETHEUS_UNAVAILABLE
    for word in words:
        assert word in found.problem.detail


def test_a_frozen_prometheus_is_a_problem_within_the_timeout_and_heals(prometheus):
    """A server that accepts and never answers costs one timeout, not the loop."""
    with reader_of(prometheus.url, timeout_seconds=0.5) as reader:
        prometheus.process.pause()
        try:
            _assert_unavailable(asyncio.run(reader.read()), "no answer within 0.5 s")
        finally:
            prometheus.process.resume()
        assert answered(reader).problem is None


def test_a_dead_prometheus_is_a_problem_and_heals(prometheus):
    """Refused connections are told as such; after the restart the same reader goes on."""
    with reader_of(prometheus.url) as reader:
        prometheus.process.stop()
        _assert_unavailable(asyncio.run(reader.read()), "Connection refused")
        prometheus.start()
        prometheus.wait_ready()
        assert answered(reader).problem is None
    read_until(prometheus.url, lambda found: (NAMESPACE, "real") in found.pods)


def test_an_answer_that_trickles_in_is_cut_off(prometheus):
    """Single bytes reset the timeout of a socket, not the deadline of a query."""
    with proxying(prometheus.url) as proxy:
        proxy.trickle_seconds = 0.1
        found = read_once(proxy.url, timeout_seconds=0.5)
    _assert_unavailable(found, "no answer within 0.5 s")


def test_a_reading_under_way_is_not_joined_by_another(prometheus):
    """A slow server never makes readings pile up."""

    async def twice(reader: PrometheusReader) -> tuple[ClusterMetrics, ClusterMetrics]:
        first = asyncio.ensure_future(reader.read())
        while not proxy.requests:  # noqa: ASYNC110 - a thread counts them
            await asyncio.sleep(0.01)
        second = await reader.read()
        return await first, second

    with proxying(prometheus.url) as proxy:
        proxy.trickle_seconds = 0.1
        with reader_of(proxy.url, timeout_seconds=1.0) as reader:
            first, second = asyncio.run(twice(reader))
    _assert_unavailable(first, "no answer within 1 s")
    _assert_unavailable(second, "the reading before has not ended yet")


def test_a_failure_at_once_is_tried_again_and_again_only_so_often(prometheus):
    """One failed request is repeated, two in a row are a problem."""
    with proxying(prometheus.url) as proxy:
        proxy.failures = 1
        assert read_once(proxy.url).problem is None
        proxy.failures, before = 2, len(proxy.requests)
        _assert_unavailable(read_once(proxy.url), "503")
        assert len(proxy.requests) - before == 2


# Credentials


def test_a_bearer_token_is_read_again_when_it_rotates(prometheus, tmp_path):
    """The next query after a rotation carries the new token; no token shows in a message."""
    token = tmp_path / "token"
    token.write_text("first\n")
    with (
        proxying(prometheus.url) as proxy,
        reader_of(proxy.url, bearer_token_file=str(token)) as reader,
    ):
        proxy.required = {"Authorization": "Bearer first"}
        assert answered(reader).problem is None
        proxy.required = {"Authorization": "Bearer second"}
        refused = asyncio.run(reader.read())
        _assert_unavailable(refused, "HTTP 401")
        assert refused.problem is not None
        assert "first" not in refused.problem.detail
        token.write_text("second\n")
        assert answered(reader).problem is None
        token.unlink()
        _assert_unavailable(asyncio.run(reader.read()), "token")


def test_tenant_and_basic_auth_are_sent(prometheus, tmp_path):
    """Multi-tenant backends are asked for the right tenant by the right user."""
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    with proxying(prometheus.url) as proxy:
        proxy.required = {
            "X-Scope-OrgID": "team-a",
            "Authorization": "Basic b3BlcmF0b3I6b3BlbiBzZXNhbWU=",
        }
        settings = {
            "basic_auth_username": "operator",
            "basic_auth_password_file": str(password),
        }
        _assert_unavailable(read_once(proxy.url, **settings), "HTTP 401")
        assert read_once(proxy.url, tenant="team-a", **settings).problem is None


def test_a_private_authority_is_trusted_only_when_named(prometheus):
    """TLS is always verified, against the administrator's own authority where one is given."""
    with proxying(prometheus.url, DATA / "loopback.pem") as proxy:
        _assert_unavailable(read_once(proxy.url), "CERTIFICATE_VERIFY_FAILED")
        ca_file = str(DATA / "loopback-ca.pem")
        assert read_once(proxy.url, ca_file=ca_file).problem is None
