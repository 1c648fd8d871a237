"""A redirect of Prometheus: what is sent on to where it leads."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.answering import Answering, serving

from servingslo.adapters.prometheus.client import PrometheusClient
from servingslo.adapters.prometheus.config import PrometheusConfig

_EMPTY = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


@contextmanager
def _store(leads_to: str = "") -> Iterator[tuple[str, list[Mapping[str, str]]]]:
    """The address of a store that redirects its first request, and the headers it was sent."""
    sent: list[Mapping[str, str]] = []

    class Store(Answering):
        def reply(self) -> None:
            sent.append(dict(self.headers))
            if leads_to and len(sent) == 1:
                self.send_response(307)
                self.send_header("Location", f"{leads_to}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.answer(_EMPTY)

    with serving(Store) as url:
        yield url, sent


def _ask(url: str, token: Path, query: str) -> None:
    token.write_text("secret")
    config = PrometheusConfig(url=url, tenant="team-a", bearer_token_file=str(token))
    client = PrometheusClient(config)
    client.query(query, deadline=time.monotonic() + 5.0)
    client.close()


@pytest.mark.parametrize("query", ["up", f"up{' or up' * 1000}"], ids=["get", "post"])
def test_neither_tenant_nor_token_follows_a_redirect_to_another_server(
    query: str, tmp_path: Path
) -> None:
    """Whoever answers in the store's place learns neither who asks nor with what right."""
    with _store() as (elsewhere, there), _store(elsewhere) as (url, here):
        _ask(url, tmp_path / "token", query)
    assert [one["X-Scope-OrgID"] for one in here] == ["team-a"]
    assert [{"X-Scope-OrgID", "Authorization"} & {*one} for one in there] == [set()]


def test_tenant_and_token_follow_a_redirect_within_the_server(tmp_path: Path) -> None:
    """A path of its own is still the store that the administrator named."""
    with _store("/prefix") as (url, sent):
        _ask(url, tmp_path / "token", "up")
    assert [one["X-Scope-OrgID"] for one in sent] == ["team-a"] * 2
    assert [one["Authorization"] for one in sent] == ["Bearer secret"] * 2
