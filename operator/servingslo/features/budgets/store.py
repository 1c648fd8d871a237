"""The ServingBudgets of the cluster, and the labels of namespaces; from watched caches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from servingslo.adapters.kubernetes.api.cache import Caches, ObjectCache
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject, Patch
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.adapters.kubernetes.api.selectors import (
    Requirement,
    Selector,
    matches,
    selector_from_spec,
)
from servingslo.api.refusals import first_refusal
from servingslo.api.v1alpha1 import API_VERSION
from servingslo.errors import NotFoundError, PermissionDeniedError
from servingslo.features.budgets.kind import PLURAL, ServingBudgetSpec

_START_TIMEOUT_SECONDS = 30.0
_SELECTORS = ("namespaceSelector", "selector")
# No label has an empty key.
_NOTHING: Selector = (Requirement(key="", operator="Exists"),)
_ABSENT = {
    NotFoundError: "the CRD of ServingBudget is not installed",
    PermissionDeniedError: "no ServingBudget is enforced (budgets.enabled)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRecord:
    """One ServingBudget. refused: what is wrong with its spec; '' if nothing is."""

    name: str
    uid: str
    generation: int = 0
    gpus: int = 0
    namespace_selector: Selector = ()
    selector: Selector = ()
    refused: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)


class KubernetesServingBudgets:
    """Reads them, and writes their status."""

    def __init__(self, client: KubeClient, *, namespaces: Sequence[str] = ()) -> None:
        """namespaces: whose labels are read if a budget selects by them; none: all."""
        self._client = client
        self._tasks = Caches()
        self._budgets: ObjectCache[BudgetRecord] = ObjectCache(
            client, api_path(API_VERSION, PLURAL), budget_record, absent=_ABSENT
        )
        each = [{"fieldSelector": f"metadata.name={name}"} for name in namespaces]
        self._namespaces: list[ObjectCache[Mapping[str, str]]] = [
            ObjectCache(client, api_path("v1", "namespaces"), _labels, query=query)
            for query in each or [{}]
        ]
        self._watches_namespaces = self._had_budgets = False

    async def start(self) -> None:
        """Start watching and wait for the first lists, at most half a minute each."""
        await self._tasks.start([self._budgets], timeout_seconds=_START_TIMEOUT_SECONDS)
        if any(one.namespace_selector for one in self._budgets.items.values()):
            self._watches_namespaces = True
            await self._tasks.start(self._namespaces, timeout_seconds=_START_TIMEOUT_SECONDS)

    async def stop(self) -> None:
        """Stop watching."""
        await self._tasks.stop()

    def read(self) -> Sequence[BudgetRecord] | None:
        """Every budget by name; None while they are not known.

        None at all if the resource is not installed, or the operator never had the right to read
        it. A right that is lost lifts no budget.
        """
        if not self._budgets.listed.is_set():
            return None
        if isinstance(self._budgets.problem, NotFoundError):
            return ()
        if isinstance(self._budgets.problem, PermissionDeniedError):
            return None if self._had_budgets else ()
        found = sorted(self._budgets.items.values(), key=lambda one: one.name)
        self._had_budgets = bool(found)
        by_namespace = any(one.namespace_selector for one in found)
        return None if by_namespace and not self._namespaces_known() else found

    def _namespaces_known(self) -> bool:
        """Whether labels of namespaces are known; they are watched from the first such question."""
        if not self._watches_namespaces:
            self._watches_namespaces = True
            self._tasks.begin(self._namespaces)
        return all(
            one.listed.is_set() and not isinstance(one.problem, PermissionDeniedError)
            for one in self._namespaces
        )

    def selects(self, budget: BudgetRecord, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a ServingSLO of that namespace, with these labels, is of the budget.

        A new namespace is selected until its labels are seen.
        """
        if not _matches(budget.selector, labels):
            return False
        found = (one.items.get(("", namespace)) for one in self._namespaces)
        of_namespace = next((labels for labels in found if labels is not None), None)
        return of_namespace is None or _matches(budget.namespace_selector, of_namespace)

    async def patch_status(self, budget: BudgetRecord, changed: Mapping[str, Any]) -> None:
        """Merge the changed fields of the status. Raises: ClusterError."""
        body = {"metadata": {"uid": budget.uid}, "status": dict(changed)}
        path = api_path(API_VERSION, PLURAL, name=budget.name, subresource="status")
        await self._client.patch(path, body, Patch.MERGE)


def budget_record(item: KubeObject, previous: BudgetRecord | None) -> BudgetRecord:
    """The record of a ServingBudget; refused says what is wrong with its spec, if anything is.

    If a selector is wrong, it selects what it did before; nothing if that is not known.
    """
    metadata: Mapping[str, Any] = item["metadata"]
    stated: Mapping[str, Any] = item.get("spec") or {}
    refused, gpus, readable = "", 0, True
    try:
        gpus = ServingBudgetSpec.model_validate(stated).gpus
    except ValidationError as error:
        refused = str(first_refusal(error))
        bad = {each["loc"][:1] for each in error.errors(include_url=False)}
        readable = bad.isdisjoint({(), *((name,) for name in _SELECTORS)})
    selectors: Sequence[Selector] = ((), _NOTHING)
    if readable:
        selectors = [selector_from_spec(stated.get(name)) for name in _SELECTORS]
    elif previous is None or previous.uid != metadata["uid"] or previous.selector == _NOTHING:
        refused += "; nothing is bounded"
    else:
        selectors = (previous.namespace_selector, previous.selector)
        refused += "; what it selected before does not grow"
    return BudgetRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        gpus=gpus,
        namespace_selector=tuple(selectors[0]),
        selector=tuple(selectors[1]),
        refused=refused,
        status=item.get("status") or {},
    )


def _labels(item: KubeObject, _previous: Mapping[str, str] | None) -> Mapping[str, str]:
    return (item["metadata"].get("labels") or {}).copy()


def _matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    return not selector or matches(selector, labels)
