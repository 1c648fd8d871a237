"""Reads one pool, or the only target, of a resource at a tick: cluster, metrics, past."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.adapters import Adapters
from servingslo.controller.join import fallback_place, join, subject_of
from servingslo.controller.registry import Resource
from servingslo.copying import replace
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.policy.inputs import InForce, Observation, SignalProblem, Targets
from servingslo.policy.ports import ClusterMetrics, WorkloadQuestion, WorkloadView


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLook:
    """One pool, or the only target, as it was read at this tick."""

    targets: Targets
    view: WorkloadView
    observation: Observation


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at the pools of a resource; decides nothing."""

    adapters: Adapters

    async def observe(
        self,
        resource: Resource,
        pool: str,
        targets: Targets,
        metrics: ClusterMetrics,
        conflict: SignalProblem | None,
    ) -> PoolLook:
        """One pool as it is now, or the only target."""
        ref = resource.record.ref
        view = await self.adapters.workloads.read(
            ref.namespace,
            targets.target,
            targets.batching.container,
            metrics.recognize(ref.namespace, targets.runtime),
        )
        view = replace(
            view,
            in_force=await self._in_force(ref, targets, view),
            not_woken=await self._not_woken(ref, targets),
        )
        observation = join(
            subject_of(resource.record, targets, pool),
            view,
            metrics,
            now_seconds=self.adapters.clock.now_seconds(),
            problems=() if conflict is None else (conflict,),
        )
        return PoolLook(targets=targets, view=view, observation=observation)

    def with_past(self, looks: Sequence[PoolLook]) -> Observation:
        """The first observation with the past of the whole resource, read from all its pods."""
        observation = looks[0].observation
        if self.adapters.history is None and not self.adapters.readers:
            return observation
        # Past pods are named after the workload that the target stands for.
        targets = replace(looks[0].targets, target=looks[0].view.target)
        ref = ResourceRef(
            namespace=observation.namespace, name=observation.name, uid=observation.uid
        )
        pods = [pod.name for look in looks for pod in look.view.pods]
        asked = WorkloadQuestion(
            namespace=ref.namespace,
            targets=targets,
            runtime=looks[0].view.read_as.runtime,
            fallback=fallback_place(looks[0].view),
        )
        found = {one.key.name: one.take(ref.uid, asked, pods) for one in self.adapters.readers}
        return replace(
            observation,
            history=self._history(ref, targets, pods),
            features={name: read for name, read in found.items() if read is not None},
        )

    async def _in_force(
        self, ref: ResourceRef, targets: Targets, view: WorkloadView
    ) -> Mapping[str, InForce]:
        """The current values of each actuator, in addition to the view of the workload."""
        found = [
            (actuator.knob, await actuator.in_force(ref, targets, view))
            for actuator in self.adapters.actuators
        ]
        return {knob: standing for knob, standing in found if standing is not None}

    async def _not_woken(self, ref: ResourceRef, targets: Targets) -> str:
        """Why a gateway would count no request for the target at zero, if it may go to zero."""
        if self.adapters.routing is None or not targets.replicas.may_sleep:
            return ""
        routes = [one.route for one in targets.classes if one.orders]
        for name in routes or [targets.gateway_name or targets.target.name]:
            if why := await self.adapters.routing.not_kept(ref.namespace, name):
                return why
        return ""

    def _history(
        self, ref: ResourceRef, targets: Targets, pods: Sequence[str]
    ) -> RateHistory | None:
        if self.adapters.history is None or not all(one.orders for one in targets.classes):
            # The engines' past has the requests of all classes.
            return None
        return self.adapters.history.take(ref.uid, ref.namespace, targets, pods)
