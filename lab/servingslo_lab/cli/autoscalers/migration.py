"""From another autoscaler's resource to a ServingSLO in mode Recommend.

What has the same meaning is taken over. Everything else is reported with the reason: nothing that
the source states is dropped in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servingslo.api.convert import parse_spec
from servingslo.errors import InvalidInputError
from servingslo.models.objectives import LatencyMetric, Objective
from servingslo.policy.inputs import FallbackBehavior, Mode
from servingslo.units import SECONDS_PER_DAY, format_duration
from servingslo_lab.cli.autoscalers import annotations, windows, wva
from servingslo_lab.cli.autoscalers.documents import Autoscaler
from servingslo_lab.cli.autoscalers.hpa import HPA_KIND, HorizontalPodAutoscaler, HpaSpec
from servingslo_lab.cli.autoscalers.pod_autoscaler import PodAutoscaler, PodAutoscalerSpec
from servingslo_lab.cli.autoscalers.query_objectives import is_latency, objective_of, written
from servingslo_lab.cli.autoscalers.scaled_object import (
    SCALED_OBJECT_KIND,
    FallbackKind,
    ScaledObject,
    ScaledObjectSpec,
    Trigger,
)
from servingslo_lab.cli.autoscalers.shared import (
    DEFAULT_API_VERSION,
    Behavior,
    Metadata,
    stated,
    unread,
)

# Ranges of replicas.idleAfter and fallback.staleAfter.
SHORTEST_IDLE_SECONDS, LONGEST_IDLE_SECONDS = 10, round(7 * SECONDS_PER_DAY)
SHORTEST_STALE_SECONDS, LONGEST_STALE_SECONDS = 1, round(SECONDS_PER_DAY)
# The HPA's own stabilization before a step down: what it waits for where no behavior says more.
HPA_DOWN_WINDOW_SECONDS = 300
EXAMPLE_OBJECTIVE = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0)
"""The first objective of the README, where neither the source nor the user states one."""

_THRESHOLD = "the replica count follows from the objectives, not from a threshold"
_LATENCY = "a latency, not understood: state --objective"
_SCALABLE = frozenset({"Deployment", "StatefulSet"})
# Settings of triggers that say what is measured, of any type; and those shown, the longest last.
_NAMING = ("query", "metricName", "expression", "url", "valueLocation", "nrql")
_CRON = ("start", "end", "desiredReplicas", "timezone")
_SHOWN = ("threshold", "value", *_CRON, "query")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A field of the source, its value as text ('' for none), and what became of it."""

    field: str
    value: str = ""
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A ServingSLO in mode Recommend.

    source: kind and name of what it was made from. spec: valid by the API. taken, left: fields of
    the source that were taken over, and those that were not. remarks: what to know, and to do next.
    exemplary: the objectives are an example, because none was found or stated.
    """

    source: str
    name: str
    namespace: str | None
    spec: Mapping[str, Any]
    taken: tuple[Note, ...]
    left: tuple[Note, ...]
    remarks: tuple[str, ...]
    exemplary: bool


@dataclass(slots=True)
class _Draft:
    """A migration in the making."""

    spec: dict[str, Any] = field(default_factory=dict)
    objectives: dict[str, Objective] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    taken: list[Note] = field(default_factory=list)
    left: list[Note] = field(default_factory=list)

    def take(self, name: str, value: object, about: str) -> None:
        """A field of the source was taken over."""
        self.taken.append(Note(field=name, value=str(value), about=about))

    def leave(self, name: str, value: object, about: str) -> None:
        """A field of the source was not taken over."""
        self.left.append(Note(field=name, value=str(value), about=about))


def migrated(
    source: Autoscaler, objectives: Sequence[Objective] = (), namespace: str | None = None
) -> Migration:
    """The ServingSLO that takes the place of another autoscaler, in mode Recommend.

    objectives: of the user, instead of those found in triggers. namespace: if the source has none.
    Raises: InvalidInputError if the source is made from another one, or has a bad annotation.
    """
    metadata = source.metadata
    _check_owner(metadata, source.kind)
    draft = _Draft()
    _target(draft, source)
    draft.spec["mode"] = Mode.RECOMMEND.value
    draft.spec["objectives"] = []
    if isinstance(source, HorizontalPodAutoscaler):
        _from_hpa(draft, source.spec)
    elif isinstance(source, PodAutoscaler):
        _from_pod_autoscaler(draft, source.spec)
    else:
        _from_scaled_object(draft, source.spec)
    for path, value in unread(source.spec, "spec"):
        draft.leave(path, value, "not read: no field that is known here")
    _annotations(draft, metadata)
    _from_wva(draft, metadata)
    chosen = [*objectives] or [*draft.objectives.values()]
    draft.spec["objectives"] = [written(one) for one in chosen or (EXAMPLE_OBJECTIVE,)]
    parse_spec(draft.spec)
    return Migration(
        source=f"{source.kind} {metadata.name}",
        name=metadata.name,
        namespace=metadata.namespace or namespace,
        spec=draft.spec,
        taken=tuple(draft.taken),
        left=tuple(draft.left),
        remarks=(*draft.remarks, *_next_steps(source)),
        exemplary=not chosen,
    )


def _check_owner(metadata: Metadata, kind: str) -> None:
    owner = metadata.controller
    if kind == HPA_KIND and owner is not None and owner.kind == SCALED_OBJECT_KIND:
        allowed = f"an HPA of its own; KEDA made this one: migrate scaledobject/{owner.name}"
        raise InvalidInputError(
            f"{kind} {metadata.name}: metadata.ownerReferences", owner.name, allowed
        )


def _target(draft: _Draft, source: Autoscaler) -> None:
    target = source.spec.scale_target_ref
    kind = target.kind or "Deployment"
    ref = {"kind": kind, "name": target.name}
    if (target.api_version or DEFAULT_API_VERSION) != DEFAULT_API_VERSION:
        ref = {"apiVersion": str(target.api_version), **ref}
    draft.spec["targetRef"] = ref
    needs = "" if kind in _SCALABLE else "; needs this kind in the chart's extraScalableKinds"
    draft.take("spec.scaleTargetRef", f"{kind}/{target.name}", f"targetRef{needs}")
    owner = source.metadata.controller
    if owner is not None:
        about = f"{owner.kind} makes this {source.kind} again: turn its autoscaling off there"
        draft.leave("metadata.ownerReferences", f"{owner.kind}/{owner.name}", about)


def _from_hpa(draft: _Draft, spec: HpaSpec) -> None:
    replicas: dict[str, Any] = {"min": spec.least, "max": spec.max_replicas}
    draft.take("spec.minReplicas", spec.least, "replicas.min")
    draft.take("spec.maxReplicas", spec.max_replicas, "replicas.max")
    if spec.least == 0:
        down = None if spec.behavior is None else spec.behavior.scale_down
        window = None if down is None else down.stabilization_window_seconds
        _idle(draft, replicas, HPA_DOWN_WINDOW_SECONDS if window is None else window)
    draft.spec["replicas"] = replicas
    _behavior(draft, spec.behavior, "spec.behavior")
    for index, metric in enumerate(spec.metrics or ()):
        if metric.source is None:
            continue
        target = metric.source.target
        value = f"{metric.type} {metric.name}, {target.type} {target.threshold}"
        about = _LATENCY if is_latency(metric.name) else _THRESHOLD
        if metric.name == wva.DESIRED_METRIC:
            about = wva.COUNT
        draft.leave(f"spec.metrics[{index}]", value, about)


def _from_pod_autoscaler(draft: _Draft, spec: PodAutoscalerSpec) -> None:
    replicas: dict[str, Any] = {"min": spec.least, "max": spec.max_replicas}
    draft.take("spec.minReplicas", spec.least, "replicas.min")
    draft.take("spec.maxReplicas", spec.max_replicas, "replicas.max")
    least = [spec.least, *(one.min_replicas for one in spec.schedules)]
    if 0 in least:
        _idle(draft, replicas, HPA_DOWN_WINDOW_SECONDS)
    draft.spec["replicas"] = replicas
    for index, one in enumerate(spec.schedules):
        wanted = windows.window(
            one.cron, one.timezone, one.seconds, min=one.min_replicas, max=one.max_replicas
        )
        value = f"{one.name}, {one.start_time} to {one.end_time}"
        _window(draft, f"spec.schedules[{index}]", value, wanted)
    for index, metric in enumerate(spec.metrics_sources):
        value = f"{metric.target_metric}, {metric.target_value}"
        about = _LATENCY if is_latency(metric.target_metric) else _THRESHOLD
        draft.leave(f"spec.metricsSources[{index}]", value, about)
    if spec.sub_target_selector is not None:
        about = "one role alone is not scaled: the bounds are for replicas of the whole target"
        draft.leave("spec.subTargetSelector", spec.sub_target_selector, about)
    if spec.scaling_strategy:
        draft.leave("spec.scalingStrategy", spec.scaling_strategy, _THRESHOLD)


def _window(draft: _Draft, path: str, value: str, wanted: Mapping[str, Any]) -> None:
    refused = windows.add_window(draft.spec["replicas"], wanted)
    if refused:
        draft.leave(path, value, refused)
    else:
        draft.take(path, value, "replicas.schedule: ordered one cold start earlier")


def _cron(draft: _Draft, trigger: Trigger, path: str) -> None:
    """KEDA takes the greatest count of its triggers, up to the maximum."""
    said, replicas = trigger.metadata, draft.spec["replicas"]
    start, end, wanted = (said.get(name, "") for name in ("start", "end", "desiredReplicas"))
    start, end = windows.plain(start), windows.plain(end)
    zone = said.get("timezone", "")
    value = f"cron start {start}, end {end}, desiredReplicas {wanted}, timezone {zone or 'UTC'}"
    seconds, why = windows.duration_seconds(start, end)
    if not wanted.isdecimal():
        why = "desiredReplicas is no count"
    elif int(wanted) <= replicas["min"]:
        why = "replicas.min is no less"
    if why or seconds is None:
        draft.leave(path, value, why)
        return
    least = min(int(wanted), replicas["max"])
    if least < int(wanted):
        draft.leave(f"{path}.metadata.desiredReplicas", wanted, f"at most replicas.max, {least}")
    _window(draft, path, value, windows.window(start, zone, seconds, min=least))


def _from_scaled_object(draft: _Draft, spec: ScaledObjectSpec) -> None:
    replicas: dict[str, Any] = {"min": spec.least, "max": spec.most}
    draft.take("spec.minReplicaCount", spec.least, "replicas.min")
    draft.take("spec.maxReplicaCount", spec.most, "replicas.max")
    if spec.least == 0:
        _idle(draft, replicas, spec.cooldown_seconds)
        draft.take("spec.cooldownPeriod", spec.cooldown_seconds, "replicas.idleAfter")
    elif spec.cooldown_period is not None:
        about = "only decides about the step to zero"
        draft.leave("spec.cooldownPeriod", spec.cooldown_period, about)
    draft.spec["replicas"] = replicas
    _behavior(draft, spec.behavior, "spec.advanced.horizontalPodAutoscalerConfig.behavior")
    _fallback(draft, spec)
    if spec.idle_replica_count is not None:
        about = "there is no second minimum while idle; for zero state replicas.min 0 and idleAfter"
        draft.leave("spec.idleReplicaCount", spec.idle_replica_count, about)
    if spec.initial_cooldown_period:
        about = "a new target is not scaled to zero before idleAfter has passed without requests"
        draft.leave("spec.initialCooldownPeriod", spec.initial_cooldown_period, about)
    if spec.polling_interval is not None and "fallback" not in draft.spec:
        about = "all resources are decided each tickSeconds of the operator"
        draft.leave("spec.pollingInterval", spec.polling_interval, about)
    _advanced(draft, spec)
    for index, trigger in enumerate(spec.triggers):
        path = f"spec.triggers[{index}]"
        known = _trigger(draft, trigger, path, alone=not spec.formula)
        for name, value, about in trigger.beside(known):
            draft.leave(f"{path}.{name}", value, about)


def _idle(draft: _Draft, replicas: dict[str, Any], seconds: int) -> None:
    kept = min(max(seconds, SHORTEST_IDLE_SECONDS), LONGEST_IDLE_SECONDS)
    replicas["idleAfter"] = _duration(kept)
    if kept != seconds:
        draft.leave("idle time", f"{seconds}s", f"idleAfter is from 10s to 168h: {_duration(kept)}")
    draft.remarks.append(
        "replicas.min 0: the last replica only goes if a gateway counts this workload's requests."
    )


def _behavior(draft: _Draft, behavior: Behavior | None, path: str) -> None:
    if behavior is None:
        about = "none stated; the HPA's defaults (4 pods or 100 % in 15 s, 300 s) are not assumed"
        draft.leave(path, "", about)
        return
    kept: dict[str, Any] = {}
    for name, rules in (("scaleUp", behavior.scale_up), ("scaleDown", behavior.scale_down)):
        if rules is None:
            continue
        wanted = {key: one for key, one in stated(rules).items() if key != "tolerance"}
        if wanted:
            kept[name] = wanted
            draft.take(f"{path}.{name}", ", ".join(wanted), f"behavior.{name}")
        if rules.tolerance is not None:
            about = "there is no tolerance: each whole replica that is needed is ordered"
            draft.leave(f"{path}.{name}.tolerance", rules.tolerance, about)
    if behavior.scale_up is not None and behavior.scale_up.policies is None:
        about = "the HPA's default (4 pods or 100 % in 15 s) is not assumed: no limit"
        draft.leave(f"{path}.scaleUp.policies", "", about)
    if kept:
        draft.spec["behavior"] = kept


def _fallback(draft: _Draft, spec: ScaledObjectSpec) -> None:
    fallback = spec.fallback
    if fallback is None:
        return
    path, value = "spec.fallback", f"{fallback.behavior.value}, {fallback.replicas} replicas"
    wanted: dict[str, Any] = {}
    higher = fallback.behavior in {FallbackKind.STATIC, FallbackKind.CURRENT_IF_HIGHER}
    if higher and fallback.replicas >= 1:
        floor = min(fallback.replicas, spec.most)
        wanted = {"behavior": FallbackBehavior.FLOOR.value, "replicas": floor}
        draft.take(path, value, "fallback: at least so many, and never fewer than now")
        if floor != fallback.replicas:
            draft.leave(f"{path}.replicas", fallback.replicas, f"at most replicas.max, {floor}")
    elif fallback.behavior is FallbackKind.CURRENT:
        draft.take(path, value, "fallback.behavior Hold, the default: the replica count is kept")
    else:
        about = "without metrics no replica is removed: the replica count is kept (Hold)"
        draft.leave(path, value, about)
    seconds = fallback.failure_threshold * spec.polling_seconds
    stale = min(max(seconds, SHORTEST_STALE_SECONDS), LONGEST_STALE_SECONDS)
    wanted["staleAfter"] = _duration(stale)
    about = f"fallback.staleAfter: failures times pollingInterval, {spec.polling_seconds} s"
    draft.take(f"{path}.failureThreshold", fallback.failure_threshold, about)
    draft.spec["fallback"] = wanted


def _advanced(draft: _Draft, spec: ScaledObjectSpec) -> None:
    if spec.advanced is None:
        return
    modifiers = spec.advanced.scaling_modifiers
    if modifiers is not None and (spec.formula or modifiers.target):
        value = f"{spec.formula}, target {modifiers.target}".removeprefix(", ")
        draft.leave("spec.advanced.scalingModifiers.formula", value, _THRESHOLD)
    if spec.advanced.restore_to_original_replica_count:
        about = "deleting a ServingSLO leaves the replica count as it is"
        draft.leave("spec.advanced.restoreToOriginalReplicaCount", "true", about)


def _trigger(draft: _Draft, trigger: Trigger, path: str, *, alone: bool) -> Sequence[str]:
    """The settings that were taken over or shown.

    alone: no formula stands over the triggers, with which KEDA ignores their thresholds.
    """
    if trigger.type == "cron" and alone:
        _cron(draft, trigger, path)
        return _CRON
    query, threshold = trigger.metadata.get("query", ""), trigger.metadata.get("threshold", "")
    objective = objective_of(query, threshold) if alone else None
    if objective is not None:
        # KEDA takes the greatest count of its triggers: the shortest threshold decides.
        others = draft.objectives.get(objective.key, objective)
        draft.objectives[objective.key] = min(objective, others, key=lambda o: o.threshold_seconds)
        about = f"objectives: {objective.key}, its shortest threshold, unless others are stated"
        draft.take(path, f"{trigger.type} {query}, threshold {threshold}", about)
        if trigger.metric_type != "Value":
            about = "divides the latency by the replicas; the objective is the threshold as written"
            draft.leave(f"{path}.metricType", trigger.metric_type or "AverageValue", about)
        return ("query", "threshold", "metricType")
    named = " ".join(trigger.metadata.get(key, "") for key in _NAMING)
    about = _LATENCY if is_latency(named) else _THRESHOLD
    if wva.DESIRED_METRIC in query:
        about = wva.COUNT
    settings = ", ".join(f"{x} {trigger.metadata[x]}" for x in _SHOWN if x in trigger.metadata)
    draft.leave(path, f"{trigger.type} {settings}".strip(), about)
    return _SHOWN


def _annotations(draft: _Draft, metadata: Metadata) -> None:
    for one in annotations.read(metadata):
        path = f"metadata.annotations[{one.name}]"
        if one.rule is not None:
            name, value = one.rule
            draft.spec.setdefault("behavior", {}).setdefault(one.direction, {})[name] = value
            draft.take(path, one.value, f"behavior.{one.direction}.{name}")
        if one.about:
            draft.leave(path, one.value, one.about)


def _from_wva(draft: _Draft, metadata: Metadata) -> None:
    found = wva.read(metadata)
    if found is None:
        return
    for name, value, about in found.notes:
        draft.leave(f"metadata.annotations[{name}]", value, about)


def _next_steps(source: Autoscaler) -> list[str]:
    kind = "hpa" if source.kind == HPA_KIND else source.kind.lower()
    steps = [
        f"{source.kind} {source.metadata.name} keeps scaling; Recommend only reports a count.",
        f"To hand over: kubectl delete {kind} {source.metadata.name}, then mode: Auto.",
    ]
    if isinstance(source, ScaledObject):
        steps.append("Or keep KEDA, and let it follow the decided count: actuation Metric or Keda.")
    return steps


def _duration(seconds: int) -> str:
    """Whole seconds as a duration that the API takes in hours at most."""
    return format_duration(seconds) if seconds < SECONDS_PER_DAY else f"{seconds}s"
