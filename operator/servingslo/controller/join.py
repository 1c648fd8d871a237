"""Joins what Kubernetes and what Prometheus know into one observation of a workload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servingslo.estimation.sample import EngineSample, GatewaySample, PodSample
from servingslo.estimation.season import RateHistory
from servingslo.estimation.service_law import CARD_SEPARATOR
from servingslo.policy.inputs import Observation, SignalProblem
from servingslo.policy.ports import ClusterMetrics, EngineArguments, WorkloadView

_NO_ARGUMENTS = EngineArguments()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Which ServingSLO an observation is made for.

    gateway_name: what a gateway calls its workload; None where that is the target's own name.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    gateway_name: str | None = None


def join(
    subject: Subject,
    view: WorkloadView,
    metrics: ClusterMetrics,
    *,
    now_seconds: float,
    problems: Sequence[SignalProblem] = (),
    history: RateHistory | None = None,
) -> Observation:
    """One control tick of one workload: each signal with the pod it belongs to.

    Only pods of the view get engines, in the subject's own namespace: what Prometheus still knows
    of deleted or foreign pods is dropped. Limits in force come from the pod's own arguments, so
    that during a rollout each pod has its own.
    """
    trouble = [*problems, *view.problems]
    if metrics.problem is not None:
        trouble.append(metrics.problem)
    return Observation(
        time_seconds=now_seconds,
        namespace=subject.namespace,
        name=subject.name,
        uid=subject.uid,
        generation=subject.generation,
        desired_replicas=view.desired_replicas,
        current_replicas=view.current_replicas,
        rollout_in_progress=view.rollout_in_progress,
        last_rollout_seconds=view.last_rollout_seconds,
        pods=tuple(_pod(subject.namespace, pod, view, metrics) for pod in view.pods),
        gateway=_gateway(subject, view, metrics),
        problems=tuple(trouble),
        batching_change_refused=view.batching_change_refused,
        history=history,
    )


def _gateway(subject: Subject, view: WorkloadView, metrics: ClusterMetrics) -> GatewaySample | None:
    """What the gateway counts for this workload, in the subject's own namespace alone."""
    if metrics.gateways is None:
        return None
    name = subject.gateway_name or view.target.name
    return metrics.gateways.get((subject.namespace, name), GatewaySample())


def _pod(namespace: str, pod: PodSample, view: WorkloadView, metrics: ClusterMetrics) -> PodSample:
    known = metrics.pods.get((namespace, pod.name))
    if known is None:
        return pod
    arguments = view.arguments.get(pod.name, _NO_ARGUMENTS)
    engines = tuple(_engine(engine, arguments) for engine in known.engines)
    products = sorted({gpu.product for gpu in known.gpus if gpu.product})
    product = CARD_SEPARATOR.join(products) or pod.gpu_product
    return replace(pod, engines=engines, gpus=known.gpus, gpu_product=product)


def _engine(engine: EngineSample, arguments: EngineArguments) -> EngineSample:
    return replace(
        engine,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
    )
