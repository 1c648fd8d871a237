"""The bound in a gateway's object: the field of each kind, its owner, and the former value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.marked_objects import AS_WRITTEN, FIELD_MANAGER, Count
from servingslo.adapters.kubernetes.api.owned_fields import OwnedValue, OwnedValues
from servingslo.policy.inputs import LimitKind

LIMIT_ANNOTATION = "servingslo.dev/limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitForm:
    """One kind of object, and the field of its spec that is the bound.

    parents: objects around the field, from the outermost. defaulted: values that the API server
    fills in next to a set field.
    """

    kind: LimitKind
    api_version: str
    plural: str
    parents: tuple[str, ...]
    field: str
    defaulted: Mapping[str, int] = dataclass_field(default_factory=dict)

    def around(self, spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """The existing objects around the field, from the outermost."""
        found: list[Mapping[str, Any]] = []
        for name in self.parents:
            inner = spec.get(name)
            if inner is None:
                break
            found.append(inner)
            spec = inner
        return tuple(found)

    def limit(self, spec: Mapping[str, Any]) -> int | None:
        """The bound in a spec, None if it has none."""
        around = self.around(spec)
        return around[-1].get(self.field) if len(around) == len(self.parents) else None

    def pointer(self, depth: int) -> str:
        """JSON Pointer to the parent object at that depth; beyond the last, to the field."""
        return "/spec/" + "/".join((*self.parents, self.field)[: depth + 1])


# Source: Envoy Gateway v1.9.1, BackendTrafficPolicy's CRD: each of the four defaults to 1,024 if
# another field of the circuit breaker is set.
BACKEND_TRAFFIC_POLICY = LimitForm(
    kind=LimitKind.BACKEND_TRAFFIC_POLICY,
    api_version="gateway.envoyproxy.io/v1alpha1",
    plural="backendtrafficpolicies",
    parents=("circuitBreaker",),
    field="maxParallelRequests",
    defaulted=dict.fromkeys(
        ("maxConnections", "maxPendingRequests", "maxParallelRequests", "maxParallelRetries"), 1024
    ),
)
# Source: istio.io/api v1.31.4, networking/v1alpha3/destination_rule.proto: active requests to a
# destination, HTTP/1.1 included; there are no defaults.
DESTINATION_RULE = LimitForm(
    kind=LimitKind.DESTINATION_RULE,
    api_version="networking.istio.io/v1",
    plural="destinationrules",
    parents=("trafficPolicy", "connectionPool", "http"),
    field="http2MaxRequests",
)
LIMIT_FORMS = (BACKEND_TRAFFIC_POLICY, DESTINATION_RULE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOwner:
    """The annotation's content: the bound's owner, the bound, and the former value.

    former: None if the field was absent. had_parent: whether the object around the field existed.
    had_parents: if not, how many of the objects around that one existed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    name: str
    uid: str
    limit: Count
    former: Count | None
    had_parent: Annotated[bool, Field(alias="hadParent")]
    had_parents: Annotated[Count, Field(alias="hadParents")] = 0


_OWNER = TypeAdapter(LimitOwner)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHolder(OwnedValue[LimitOwner]):
    """One object with a bound."""

    form: LimitForm

    @property
    def limit(self) -> int | None:
        """The bound; None if there is none."""
        return self.form.limit(self.spec)

    @property
    def is_ours(self) -> bool:
        """Whether the present bound is the operator's last written one."""
        return self.owner is not None and self.owner.limit == self.limit

    @property
    def manager(self) -> str | None:
        """The field manager that set the bound last, if it is not the operator."""
        return _manager(self._entries)

    @property
    def applied_by(self) -> str | None:
        """The manager that declares the bound by server-side apply, and would set it again."""
        return _manager(self._entries, operation="Apply")

    @property
    def _entries(self) -> Sequence[Mapping[str, Any]]:
        entries = self.item["metadata"].get("managedFields") or ()
        return [entry for entry in entries if _sets(entry, self.form)]

    def written(self, owner: LimitOwner) -> Iterator[KubeObject]:
        """The changes that set the bound, with the objects around it that are not there."""
        form, inner = self.form, len(self.form.parents)
        for depth in range(len(form.around(self.spec)), inner):
            yield {"op": "add", "path": form.pointer(depth), "value": {}}
        yield {"op": "add", "path": form.pointer(inner), "value": owner.limit}

    def restored(self, owner: LimitOwner) -> Iterator[KubeObject]:
        """The change that sets the former bound.

        Objects that were created around it are removed too, if they contain nothing else.
        """
        form, inner = self.form, len(self.form.parents)
        if owner.former is not None:
            yield {"op": "add", "path": form.pointer(inner), "value": owner.former}
            return
        around, depth = form.around(self.spec), inner
        others = {key: value for key, value in around[-1].items() if key != form.field}
        filled_in = all(form.defaulted.get(key) == value for key, value in others.items())
        ours = inner if owner.had_parent else owner.had_parents
        if filled_in and ours < inner:
            depth = inner - 1
            while depth > ours and len(around[depth - 1]) == 1:
                depth -= 1
        yield {"op": "remove", "path": form.pointer(depth)}


LimitHolders = OwnedValues[LimitHolder, LimitOwner]


def limit_holders(
    client: KubeClient, form: LimitForm, *, namespaces: Sequence[str] = ()
) -> LimitHolders:
    """The objects of one kind in the watched namespaces; no namespace means all."""
    return OwnedValues(
        client=client,
        api_version=form.api_version,
        plural=form.plural,
        annotation=LIMIT_ANNOTATION,
        record=_OWNER,
        make=lambda item, owner: LimitHolder(kind=form.kind, form=form, item=item, owner=owner),
        namespaces=namespaces,
    )


def taken(holder: LimitHolder, name: str, uid: str, limit: int) -> LimitOwner:
    """The owner to write, with the former value; our own bound never becomes the former value."""
    if holder.owner is not None:
        return replace(holder.owner, name=name, uid=uid, limit=limit)
    around, parents = len(holder.form.around(holder.spec)), len(holder.form.parents)
    had_parent = around == parents
    return LimitOwner(
        name=name,
        uid=uid,
        limit=limit,
        former=holder.limit,
        had_parent=had_parent,
        had_parents=0 if had_parent else around,
    )


def _sets(entry: Mapping[str, Any], form: LimitForm) -> bool:
    """Whether an entry of managedFields contains the field."""
    fields: Mapping[str, Any] = (entry.get("fieldsV1") or {}).get("f:spec") or {}
    for name in form.parents:
        fields = fields.get(f"f:{name}") or {}
    return f"f:{form.field}" in fields


def _manager(entries: Sequence[Mapping[str, Any]], operation: str | None = None) -> str | None:
    """The field manager that set the bound last, if it is not the operator.

    operation: Apply or Update; None for either.
    """
    others = [
        entry
        for entry in entries
        if entry.get("manager") != FIELD_MANAGER and operation in {None, entry.get("operation")}
    ]
    newest = max(others, key=lambda entry: str(entry.get("time")), default=None)
    return None if newest is None else str(newest.get("manager"))
