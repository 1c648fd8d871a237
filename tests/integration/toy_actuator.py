"""A toy actuator: writes how many replicas are decided into a ConfigMap that asks for it.

It shows what a new actuator takes: this file, and one row in the tuple that the operator is
started with. The ConfigMap has the name of the ServingSLO and the label `toy: "yes"`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.adapters.kubernetes.api.client import KubeClient, Patch
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.protocol import Acting, Assignment
from servingslo.errors import ClusterError, InvalidObjectError, WriteConflictError
from servingslo.explain.changes import Change, ChangeOutcome, Setting
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import InForce, SignalProblem, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.reasons import Reason

LABEL, KEY, OWNER = "toy", "replicas", "toy-owner"


@dataclass(frozen=True, slots=True)
class ToyActuator:
    """Keeps a number in a ConfigMap as decided, and takes it out again."""

    client: KubeClient
    knob: str = "toy"
    repeats_at_once: bool = False

    async def in_force(
        self, ref: ResourceRef, _targets: Targets, _view: WorkloadView
    ) -> InForce | None:
        """The number that stands there; refused where the ConfigMap does not ask for it."""
        try:
            found = await self.client.get(_path(ref.namespace, ref.name))
        except ClusterError as error:
            return InForce(refused=_refused(str(error)))
        if (found["metadata"].get("labels") or {}).get(LABEL) != "yes":
            return InForce(refused=_refused(f"ConfigMap/{ref.name} has no label {LABEL}"))
        value = (found.get("data") or {}).get(KEY)
        return InForce(values={KEY: None if value is None else int(value)})

    def wanted(self, assignment: Assignment) -> Change | None:
        """The number that was decided, where another one stands."""
        standing, decision = assignment.in_force[self.knob], assignment.decision
        before, after = standing.values.get(KEY), decision.replicas_after
        if standing.refused is not None or after is None or before == after:
            return None
        return _change(assignment.ref, before, after, decision.reason)

    async def change(self, assignment: Assignment) -> bool | None:
        """Write the number, where the ConfigMap is as it was read."""
        path = _path(assignment.ref.namespace, assignment.ref.name)
        version = (await self.client.get(path))["metadata"]["resourceVersion"]
        body = {
            "metadata": {
                "resourceVersion": version,
                "annotations": {OWNER: f"{assignment.ref.name}/{assignment.ref.uid}"},
            },
            "data": {KEY: str(assignment.decision.replicas_after)},
        }
        try:
            await self.client.patch(path, body, Patch.MERGE)
        except InvalidObjectError as error:
            raise WriteConflictError(str(error)) from error
        return True

    def not_made(self, decision: Decision, _reason: Reason, _detail: str) -> Decision:
        """The decision does not speak of it."""
        return decision

    async def undo(self, acting: Acting) -> Sequence[Change]:
        """Take the number out where its ServingSLO is gone or does not act."""
        listed = await self.client.get("/api/v1/configmaps", {"labelSelector": f"{LABEL}=yes"})
        undone = []
        for item in listed["items"]:
            meta = item["metadata"]
            owner = (meta.get("annotations") or {}).get(OWNER)
            if owner is None:
                continue
            name, _, uid = owner.partition("/")
            ref = ResourceRef(namespace=meta["namespace"], name=name, uid=uid)
            if acting(ref) != ():
                continue
            body = {"metadata": {"annotations": {OWNER: None}}, "data": {KEY: None}}
            await self.client.patch(_path(ref.namespace, name), body, Patch.MERGE)
            undone.append(_change(ref, int(item["data"][KEY]), None, Reason.RECOMMEND_ONLY))
        return undone


def _change(ref: ResourceRef, before: int | None, after: int | None, reason: Reason) -> Change:
    return Change(
        namespace=ref.namespace,
        name=ref.name,
        target=f"ConfigMap/{ref.name}",
        knob="toy",
        settings=(Setting(name=KEY, before=before, after=after),),
        reason=reason,
        outcome=ChangeOutcome.WRITTEN,
    )


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"


def _refused(detail: str) -> SignalProblem:
    return SignalProblem(reason=Reason.NOT_PERMITTED, detail=detail)
