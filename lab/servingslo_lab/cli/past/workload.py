"""The past of one workload as the operator would have observed it, from Prometheus alone.

Pods that are gone are found by their names. What kube-state-metrics says of them and of the replica
count is used where it is scraped; else the pods are those whose engines have fresh metrics.
Whatever cannot be read is a gap with its reason, never a number.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.past.rates import PastRates, names_refusal, pods_pattern
from servingslo.controller.join import Subject, join
from servingslo.errors import InvalidInputError, MetricsUnavailableError
from servingslo.estimation.forecast.season_profile import RateHistory
from servingslo.estimation.sample import PodSample
from servingslo.policy.inputs import Observation, Targets
from servingslo.policy.ports import ClusterMetrics, WorkloadView
from servingslo_lab.cli.past.gap import Gap
from servingslo_lab.cli.past.history import Readings, prometheus_now_seconds
from servingslo_lab.cli.past.ranges import PastAnswers

_DAY_SECONDS = 86_400
# A time that cannot be read is asked for again after twice as many steps each time, up to so many:
# each costs a timeout, and at most half an hour more than was lost is left out.
_MOST_LEFT_OUT = 30
# What kube-state-metrics and the controller of Rollouts call the replicas in a spec, by kind, and
# the label with the workload's name.
# Source: kube-state-metrics v2.17 docs/metrics/workload; Argo Rollouts 1.8, controller metrics.
_DESIRED = {
    "Deployment": ("kube_deployment_spec_replicas", "deployment"),
    "StatefulSet": ("kube_statefulset_replicas", "statefulset"),
    "Rollout": ("rollout_info_replicas_desired", "name"),
}
# As kube-state-metrics writes the names of extended resources that are whole cards.
_CARDS = (
    'resource=~"nvidia_com_gpu|amd_com_gpu|habana_ai_gaudi|google_com_tpu|aws_amazon_com_neuron"'
)
_ALIVE, _READY = 'phase=~"Pending|Running"', 'condition="true"'
_NO_PODS = "no ready pod of the workload has engine metrics"
_NO_COUNT = "kube-state-metrics has no replica count"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastQuestion:
    """Which workload, and which times on Prometheus' clock: whole steps, the end included.

    Raises: InvalidInputError for a kind whose past pods are not known by their names.
    """

    namespace: str
    name: str
    targets: Targets
    start_seconds: int
    end_seconds: int
    step_seconds: int

    def __post_init__(self) -> None:
        kind = self.targets.target.kind
        if kind not in _DESIRED:
            allowed = f"{', '.join(_DESIRED)}: the names of their past pods say whose they are"
            raise InvalidInputError("spec.targetRef.kind", kind, allowed)


@dataclass(slots=True)
class PastWorkload:
    """Reads once, from the start to the end. gaps, gpus and the rest are whole when it ended.

    gpus: of one pod, as it requests them; None if kube-state-metrics does not say.
    counted: whether the replica count is that of kube-state-metrics and not of pods with metrics.
    """

    config: PrometheusConfig
    question: PastQuestion
    tell: Callable[[float], None] = lambda _: None
    gaps: list[Gap] = field(default_factory=list)
    gpus: int | None = None
    counted: bool = False
    no_history: str = ""
    queries: int = 0
    _first_seen: dict[str, int] = field(default_factory=dict)
    _ready_at: dict[str, int] = field(default_factory=dict)
    _ready_after: dict[str, float] = field(default_factory=dict)

    def observations(self) -> Iterator[Observation]:
        """One at each step that could be read. Raises: MetricsUnavailableError if none can be."""
        asked = self.question
        pods = pods_pattern(asked.targets.target)
        readings = Readings(self.config, pods)
        step = asked.step_seconds
        answers = PastAnswers(self.config, end_seconds=asked.end_seconds, step_seconds=step)
        history_at = again_at = asked.start_seconds
        failures, reason = 0, ""
        try:
            for at in range(asked.start_seconds, asked.end_seconds + 1, step):
                self.tell((at - asked.start_seconds) / (asked.end_seconds - asked.start_seconds))
                if at < again_at:
                    self._miss(at, reason)
                    continue
                try:
                    metrics = readings.assembled(partial(answers.at, at_seconds=at))
                    view = self._view(answers, metrics, pods, at)
                except MetricsUnavailableError as error:
                    # An outage of now ends everything; one of then is a gap.
                    prometheus_now_seconds(self.config)
                    again_at = at + step * min(2**failures, _MOST_LEFT_OUT)
                    failures, reason = failures + 1, str(error)
                    self._miss(at, reason)
                    continue
                failures = 0
                if isinstance(view, str):
                    self._miss(at, view)
                    continue
                history = None
                if at >= history_at:
                    history = self._history(view, at)
                    history_at = at + _DAY_SECONDS
                subject = Subject(
                    namespace=asked.namespace,
                    name=asked.name,
                    uid="",
                    generation=0,
                    gateway_name=asked.targets.gateway_name,
                    model=asked.targets.model,
                    metrics=tuple(one.metric.value for one in asked.targets.objectives),
                )
                yield join(subject, view, metrics, now_seconds=at, history=history)
        finally:
            self.queries = answers.queries
            answers.close()

    def _miss(self, at: int, reason: str) -> None:
        end = at + self.question.step_seconds
        if self.gaps and self.gaps[-1].end_seconds == at and self.gaps[-1].reason == reason:
            self.gaps[-1] = replace(self.gaps[-1], end_seconds=end)
        else:
            self.gaps.append(Gap(start_seconds=at, end_seconds=end, reason=reason))

    def _view(
        self, answers: PastAnswers, metrics: ClusterMetrics, pattern: str, at: int
    ) -> WorkloadView | str:
        """The workload at this time; why it is not known."""
        asked, target = self.question, self.question.targets.target
        pods = self._pods(answers, metrics, pattern, at)
        metric, label = _DESIRED[target.kind]
        whose = self._of(f'{label}="{target.name}"')
        counts = self._values(answers, f"max ({metric}{whose})", at)
        self.counted = self.counted or bool(counts)
        served = [metrics.pods.get((asked.namespace, pod.name)) for pod in pods if pod.ready]
        if (served or not pods) and counts.get("") != 0 and not any(served):
            return _NO_PODS
        if self.counted and not counts:
            return _NO_COUNT
        names = [pod.name for pod in pods]
        return WorkloadView(
            target=target,
            desired_replicas=round(counts[""]) if counts else len(pods),
            current_replicas=len(pods),
            pods=pods,
            read_as=metrics.recognize(asked.namespace, asked.targets.runtime)(names),
        )

    def _pods(
        self, answers: PastAnswers, metrics: ClusterMetrics, pattern: str, at: int
    ) -> tuple[PodSample, ...]:
        """The pods that there were, each as old as it then was."""
        own, on = f'pod=~"{pattern}"', "on (namespace, pod)"
        alive = f"(kube_pod_status_phase{self._of(own, _ALIVE)} == 1)"
        created = self._values(
            answers,
            f"max by (pod) ((kube_pod_created{self._of(own)} and {on} {alive}) "
            f"unless {on} kube_pod_deletion_timestamp{self._of(own)})",
            at,
        )
        served = {
            pod: one
            for (namespace, pod), one in metrics.pods.items()
            if namespace == self.question.namespace and one.engines
        }
        if not created:
            stale = self.question.targets.fallback.stale_after_seconds
            return tuple(
                self._pod(name, self._first_seen.setdefault(name, at), None, at)
                for name, one in sorted(served.items())
                if any((engine.gauges_age_seconds or 0.0) <= stale for engine in one.engines)
            )
        # Before kube-state-metrics 2.7 there is no time of readiness; then the value is 1.
        is_ready = f"(kube_pod_status_ready{self._of(own, _READY)} == 1)"
        since = f"kube_pod_status_ready_time{self._of(own)}"
        ready = self._values(
            answers, f"max by (pod) (({since} and {on} {is_ready}) or {on} {is_ready})", at
        )
        gpus = self._values(
            answers,
            "max by (pod) (sum by (pod, instance) "
            f"(kube_pod_container_resource_requests{self._of(own, _CARDS)}))",
            at,
        )
        self.gpus = max([round(one) for one in gpus.values()], default=self.gpus)
        return tuple(self._pod(name, began, ready, at) for name, began in sorted(created.items()))

    def _pod(
        self, name: str, created: float, ready: Mapping[str, float] | None, at: int
    ) -> PodSample:
        """ready: since when pods are, by name; None if those with metrics are all."""
        since = created if ready is None else ready.get(name)
        if since is not None:
            # Of a pod that was ready before the reading began, it may not be the first time.
            known = ready is not None and self.question.start_seconds <= created <= since
            first = self._ready_at.setdefault(name, at)
            since = since if since >= created else first
            if known and first == at:
                self._ready_after[name] = since - created
        deployed = self.question.targets.target.kind != "StatefulSet"
        return PodSample(
            name=name,
            template_hash=name.split("-")[-2] if deployed else None,
            ready=since is not None,
            age_seconds=max(at - created, 0.0),
            ready_after_seconds=self._ready_after.get(name),
            ready_for_seconds=None if since is None else max(at - since, 0.0),
            unready_for_seconds=max(at - created, 0.0) if since is None else None,
        )

    def _values(self, answers: PastAnswers, promql: str, at: int) -> dict[str, float]:
        """The values of this time, by pod."""
        answer = answers.at(promql, at)
        return {one["metric"].get("pod", ""): float(one["value"][1]) for one in answer.result}

    def _of(self, *matchers: str) -> str:
        """What kube-state-metrics has of the namespace."""
        return self.config.selector(f'namespace="{self.question.namespace}"', *matchers)

    def _history(self, view: WorkloadView, at: int) -> RateHistory | None:
        """The two weeks before, as the operator reads them once a day."""
        target, names = self.question.targets.target, [pod.name for pod in view.pods]
        self.no_history = names_refusal(target, names)
        if self.no_history or not names:
            return None
        own = f'{self.config.namespace_label}="{self.question.namespace}"'
        matchers = ", ".join(filter(None, (self.config.matchers, own)))
        past = PastRates(replace(self.config, matchers=matchers))
        try:
            found = past.read_past(self.question.namespace, target, names, at)
        except MetricsUnavailableError as error:
            self.no_history = str(error)
            return None
        finally:
            past.close()
        self.no_history = self.no_history or found.detail
        return found
