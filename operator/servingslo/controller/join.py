"""Joins the data of Kubernetes and of Prometheus into one observation of a workload."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.copying import replace
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.gateway.classes import whole_sample
from servingslo.estimation.law.configuration import CARD_SEPARATOR
from servingslo.estimation.sample import (
    EngineSample,
    GatewaySample,
    PodSample,
    model_of_engine,
)
from servingslo.policy.inputs import Observation, SignalProblem, Targets
from servingslo.policy.ports import ClusterMetrics, EngineArguments, PodMetrics, WorkloadView
from servingslo.policy.routes import BACKEND, RULE
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.gateways import CountedWhen
from servingslo.runtimes.profile import RuntimeProfile

_NO_ARGUMENTS, _NO_METRICS = EngineArguments(), PodMetrics()
# A turn comes at most a few ticks after its reading. After a longer time the process was stopped,
# and the reading says nothing about the present.
LATE_TURN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The ServingSLO that an observation is made for.

    gateway_name: the gateway's name for its workload; None if it is the target's own name. routes:
    of each class of requests, as (class, route); their sum is then the workload's count.
    priorities: of each class, as (class, priority), for a gateway that counts by priority. model:
    of a server with several, None for its only one. metrics: those of its objectives. pool: '' for
    the only target.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    gateway_name: str | None = None
    routes: tuple[tuple[str, str], ...] = ()
    priorities: tuple[tuple[str, int], ...] = ()
    model: str | None = None
    metrics: tuple[str, ...] = ()
    pool: str = ""


def subject_of(record: ResourceRecord, targets: Targets, pool: str) -> Subject:
    """The subject of one pool of a resource, or of its only target."""
    return Subject(
        namespace=record.ref.namespace,
        name=record.ref.name,
        uid=record.ref.uid,
        generation=record.generation,
        gateway_name=targets.gateway_name,
        routes=tuple((one.name, one.route) for one in targets.classes),
        priorities=tuple((one.name, one.priority) for one in targets.classes),
        model=targets.model,
        metrics=tuple(one.metric.value for one in targets.objectives),
        pool=pool,
    )


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

    Only pods of the view get engines, in the subject's own namespace: data of deleted or foreign
    pods in Prometheus are dropped. Limits in force come from the pod's own arguments, so that
    during a rollout each pod has its own. If a pod exports the metrics of several runtimes, only
    those of the workload's runtime are used. now_seconds: of this turn, when the view was taken.
    The observation has the time to which the ages of the reading refer: the turns of one tick come
    seconds apart.
    """
    trouble = [*problems, *view.problems]
    if metrics.problem is not None:
        trouble.append(metrics.problem)
    trouble += _misread(view)
    late = 0.0 if metrics.time_seconds is None else max(now_seconds - metrics.time_seconds, 0.0)
    pods = tuple(_pod(subject.namespace, pod, view, metrics, late) for pod in view.pods)
    left_out = next((pod.metrics_off for pod in pods if _is_left_out(subject, pod, metrics)), "")
    if left_out and not any(pod.engines for pod in pods):
        trouble.append(SignalProblem(reason=Reason.METRICS_TOO_MANY, detail=left_out))
    if view.read_as.runtime is not None:
        pods, problem = of_model(subject, pods, profile(view.read_as.runtime))
        trouble += [] if problem is None else [problem]
    gateway = _gateway(subject, view, metrics)
    classes = _classes(subject, metrics, gateway)
    if late > LATE_TURN_SECONDS:
        detail = f"this turn came {late:.0f} s after the reading"
        trouble.append(SignalProblem(reason=Reason.METRICS_STALE, detail=detail))
    return Observation(
        time_seconds=now_seconds - late,
        namespace=subject.namespace,
        name=subject.name,
        pool=subject.pool,
        uid=subject.uid,
        generation=subject.generation,
        desired_replicas=view.desired_replicas,
        replicas_set_by=view.replicas_set_by,
        current_replicas=view.current_replicas,
        rollout_in_progress=view.rollout_in_progress,
        runtime=view.read_as.runtime,
        pods=pods,
        gateway=gateway if not classes or _by_priority(gateway) else whole_sample(classes.values()),
        classes=classes,
        problems=tuple(trouble),
        batching_change_refused=view.batching_change_refused,
        history=history,
        in_force=view.in_force,
        fallback=_fallback(subject, view, metrics),
        woken_by_others=view.woken_by_others,
        not_woken=view.not_woken,
    )


def _gateway(subject: Subject, view: WorkloadView, metrics: ClusterMetrics) -> GatewaySample | None:
    """The gateway's counts for this workload, in the subject's own namespace alone."""
    if metrics.gateways is None:
        return None
    name = subject.gateway_name or view.target.name
    return metrics.gateways.get((subject.namespace, name), GatewaySample())


def _by_priority(gateway: GatewaySample | None) -> bool:
    return gateway is not None and bool(gateway.priorities)


def _classes(
    subject: Subject, metrics: ClusterMetrics, gateway: GatewaySample | None
) -> dict[str, GatewaySample]:
    """The gateway's counts of each class, in the subject's own namespace alone.

    A class is a route, or at a gateway that counts by priority the requests of its priority. Two
    classes of one priority then have one count, and neither is known.
    """
    if metrics.gateways is None:
        return {}
    nothing = GatewaySample(counted=CountedWhen.PASSED_ON)
    if gateway is not None and gateway.priorities:
        counted = {one.priority: one.instances for one in gateway.priorities}
        stated = [priority for _, priority in subject.priorities]
        return {
            name: replace(nothing, instances=counted.get(priority, ()))
            if stated.count(priority) == 1
            else nothing
            for name, priority in subject.priorities
        }
    return {
        name: metrics.gateways.get((subject.namespace, route), nothing)
        for name, route in subject.routes
    }


def _fallback(
    subject: Subject, view: WorkloadView, metrics: ClusterMetrics
) -> GatewaySample | None:
    """The gateway's counts of the fallback, if it has requests and is counted apart."""
    place = fallback_place(view)
    if metrics.gateways is None or place is None:
        return None
    route = subject.gateway_name or view.target.name
    return metrics.backends.get((subject.namespace, route, *place))


def fallback_place(view: WorkloadView) -> tuple[int, int] | None:
    """Numbers of the fallback's rule and of itself in the route; None without a fallback."""
    for standing in view.in_force.values():
        rule, backend = standing.values.get(RULE), standing.values.get(BACKEND)
        if rule is not None and backend is not None:
            return rule, backend
    return None


def _misread(view: WorkloadView) -> Iterator[SignalProblem]:
    """The pods export several runtimes and none is stated, or others than the stated one."""
    names = ", ".join(view.read_as.exported)
    if view.read_as.ambiguous:
        detail = f"the pods export metrics of {names}; state one of them in spec.runtime"
        yield SignalProblem(reason=Reason.SEVERAL_RUNTIMES, detail=detail)
    elif names and view.read_as.runtime not in view.read_as.exported:
        detail = f"spec.runtime is {view.read_as.runtime}; the pods' metrics are those of {names}"
        yield SignalProblem(reason=Reason.METRICS_MISSING, detail=detail, names_cause=True)


def of_model(
    subject: Subject, pods: tuple[PodSample, ...], runtime: RuntimeProfile
) -> tuple[tuple[PodSample, ...], SignalProblem | None]:
    """The pods with only the engine of the subject's model, if engines are models.

    A problem if the model is ambiguous or no pod serves it, or if this runtime has no metric for an
    objective.
    """
    refused = dict(runtime.refused)
    for metric in subject.metrics:
        if metric in refused:
            detail = f"{metric} on {runtime.name}: {refused[metric]}"
            return pods, SignalProblem(reason=Reason.METRIC_NOT_OF_RUNTIME, detail=detail)
    if not runtime.engines_are_models:
        return pods, None
    names = sorted({model_of_engine(engine.engine) for pod in pods for engine in pod.engines})
    served = ", ".join(names)
    if subject.model is None and len(names) > 1:
        detail = f"the pods serve {served}; state one of them in spec.model"
        return pods, SignalProblem(reason=Reason.SEVERAL_MODELS, detail=detail)
    if subject.model is not None and names and subject.model not in names:
        detail = f"spec.model is {subject.model}; the pods serve {served}"
        return pods, SignalProblem(reason=Reason.MODEL_NOT_SERVED, detail=detail)
    wanted = {subject.model or name for name in names}
    alone = (
        replace(pod, engines=tuple(e for e in pod.engines if model_of_engine(e.engine) in wanted))
        for pod in pods
    )
    return tuple(alone), None


def _is_left_out(subject: Subject, pod: PodSample, metrics: ClusterMetrics) -> bool:
    return bool(metrics.pods.get((subject.namespace, pod.name), _NO_METRICS).left_out)


def _pod(
    namespace: str, pod: PodSample, view: WorkloadView, metrics: ClusterMetrics, late_seconds: float
) -> PodSample:
    """The pod with its data, and its ages at the time of the reading, so long before its view."""
    known = metrics.pods.get((namespace, pod.name), _NO_METRICS)
    arguments = view.arguments.get(pod.name, _NO_ARGUMENTS)
    runtime = view.read_as.runtime
    products = sorted({gpu.product for gpu in known.gpus if gpu.product})
    ages = (pod.age_seconds, pod.ready_for_seconds, pod.unready_for_seconds)
    age, ready, unready = (None if a is None else max(a - late_seconds, 0.0) for a in ages)
    return replace(
        pod,
        engines=tuple(_engine(e, arguments) for e in known.engines if e.runtime == runtime),
        metrics_off=known.left_out or pod.metrics_off,
        gpus=known.gpus,
        gpu_product=CARD_SEPARATOR.join(products) or pod.gpu_product,
        age_seconds=age,
        ready_for_seconds=ready,
        unready_for_seconds=unready,
    )


def _engine(engine: EngineSample, arguments: EngineArguments) -> EngineSample:
    if arguments == _NO_ARGUMENTS:
        return engine
    return replace(
        engine,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
    )
