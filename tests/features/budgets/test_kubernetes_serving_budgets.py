"""Which budgets there are while rights come and go."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servingslo.errors import ClusterError, NotFoundError, PermissionDeniedError
from servingslo.features.budgets.store import KubernetesServingBudgets

BUDGETS = "/apis/servingslo.dev/v1beta1/servingbudgets"
NAMESPACES = "/api/v1/namespaces"
OF_A_TEAM = {"gpus": 8, "namespaceSelector": {"matchLabels": {"team": "serving"}}}


class _Server:
    """An API server with one budget and one namespace. refused: what it answers, by path."""

    def __init__(self, spec: Mapping[str, Any], refused: Mapping[str, ClusterError]) -> None:
        budget = {"metadata": {"name": "inference", "uid": "u"}, "spec": spec}
        namespace = {"metadata": {"name": "chat", "labels": {"team": "serving"}}}
        self.items = {BUDGETS: [budget], NAMESPACES: [namespace]}
        self.refused = dict(refused)
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    async def get(self, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        self.asked.append((path, query))
        self._refuse(path)
        return {"items": self.items[path], "metadata": {"resourceVersion": "1"}}

    @asynccontextmanager
    async def watch(self, path: str, _query: object) -> AsyncIterator[AsyncIterator[Any]]:
        self._refuse(path)

        async def nothing() -> AsyncIterator[Any]:
            await asyncio.sleep(0.01)
            for event in ():
                yield event

        yield nothing()

    def _refuse(self, path: str) -> None:
        if (error := self.refused.get(path)) is not None:
            raise error


@asynccontextmanager
async def _store(
    spec: Mapping[str, Any], refused: Mapping[str, ClusterError] = {}
) -> AsyncIterator[tuple[KubernetesServingBudgets, _Server]]:
    server = _Server(spec, refused)
    store = KubernetesServingBudgets(server)
    await store.start()
    yield store, server
    await store.stop()


async def _until(store: KubernetesServingBudgets, error: type[ClusterError]) -> None:
    async with asyncio.timeout(10.0):
        while not isinstance(store._budgets.problem, error):  # noqa: ASYNC110 - a cache has no event
            await asyncio.sleep(0.02)


async def test_a_right_that_is_lost_lifts_no_budget() -> None:
    """Then nothing grows; a CRD that is gone took its budgets with it."""
    async with _store({"gpus": 8}) as (store, server):
        assert [one.gpus for one in store.read()] == [8]
        server.refused[BUDGETS] = PermissionDeniedError("403")
        await _until(store, PermissionDeniedError)
        assert store.read() is None
        server.refused[BUDGETS] = NotFoundError("404")
        await _until(store, NotFoundError)
        assert store.read() == ()


async def test_who_never_had_the_right_has_no_budget() -> None:
    """As an install without cluster roles."""
    async with _store({"gpus": 8}, {BUDGETS: PermissionDeniedError("403")}) as (store, _):
        assert store.read() == ()


@pytest.mark.parametrize(("spec", "known"), [(OF_A_TEAM, False), ({"gpus": 8}, True)])
async def test_namespaces_that_cannot_be_read_lift_no_budget(
    spec: Mapping[str, Any], *, known: bool
) -> None:
    """Whom a budget with a selector bounds is not known without their labels."""
    refused = {NAMESPACES: PermissionDeniedError("403")}
    async with _store(spec, refused) as (store, _):
        assert (store.read() is not None) is known


async def test_a_namespace_is_selected_until_its_labels_are_seen() -> None:
    """Otherwise a new namespace would be bounded by nothing for a moment."""
    async with _store(OF_A_TEAM) as (store, server):
        (budget,) = store.read()
        assert store.selects(budget, "chat", {})
        assert store.selects(budget, "new", {})
        server.items[NAMESPACES].append({"metadata": {"name": "new"}})
        await store._namespaces[0]._list()
        assert not store.selects(budget, "new", {})


@pytest.mark.parametrize(
    ("spec", "selected"),
    [
        ({"gpus": 8, "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, []),
        ({"gpus": 8, "selector": "prod"}, []),
        ({"gpus": 8, "namespaceSelector": {"matchLabels": {"a b": "c"}}}, []),
        ({"gpus": -1, "selector": {"matchLabels": {"tier": "prod"}}}, ["prod"]),
    ],
)
async def test_a_budget_that_an_older_crd_let_in_selects_no_more_than_it_says(
    spec: Mapping[str, Any], selected: list[str]
) -> None:
    """Nothing if a selector cannot be read."""
    async with _store(spec) as (store, _):
        (budget,) = store.read()
        assert budget.refused
        assert ("nothing is bounded" in budget.refused) is (not selected)
        tiers = ("prod", "job")
        assert [one for one in tiers if store.selects(budget, "chat", {"tier": one})] == selected


async def test_namespaces_are_watched_only_if_a_budget_asks_for_their_labels() -> None:
    """And with watchNamespaces, each of those alone, by its name."""
    async with _store({"gpus": 8}) as (store, server):
        assert [one.gpus for one in store.read()] == [8]
        assert NAMESPACES not in {path for path, _ in server.asked}
        server.items[BUDGETS][0]["spec"] = OF_A_TEAM
        await store._budgets._list()
        async with asyncio.timeout(10.0):
            while store.read() is None:  # noqa: ASYNC110 - a cache has no event
                await asyncio.sleep(0.02)
        assert NAMESPACES in {path for path, _ in server.asked}
    server = _Server(OF_A_TEAM, {})
    confined = KubernetesServingBudgets(server, namespaces=("chat", "jobs"))
    await confined.start()
    await confined.stop()
    names = {query["fieldSelector"] for path, query in server.asked if path == NAMESPACES}
    assert names == {"metadata.name=chat", "metadata.name=jobs"}
