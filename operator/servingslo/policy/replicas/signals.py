"""Metrics of the pods at this tick: fresh, ageing, missing and not-a-number kept apart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from servingslo.estimation.engine_steps import Doubt
from servingslo.estimation.sample import PodSample
from servingslo.estimation.windows import families
from servingslo.estimation.windows.counters import DOUBTED_WINDOWS
from servingslo.estimation.windows.freshness import (
    DEFAULT_SCRAPE_SECONDS,
    PodMetrics,
    fresh_seconds,
    metrics_of,
)
from servingslo.policy.inputs import Observation, SignalProblem
from servingslo.policy.replicas.ownership import metrics_problem
from servingslo.policy.replicas.proposal import StepDownBlock
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import names
from servingslo.units import format_duration

_USED = frozenset({Reason.METRICS_FRESH, Reason.METRICS_PARTIAL})
# An age is reported in steps of so many seconds, below and above a minute.
_AGE_STEPS, _LONG_SECONDS = {False: 5.0, True: 30.0}, 60.0
_WORST_FIRST = (
    Reason.METRICS_IMPLAUSIBLE,
    Reason.METRICS_NOT_A_NUMBER,
    Reason.METRICS_STALE,
    Reason.METRICS_MISSING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """How reliable the metrics are.

    serving_pods: ready, not being deleted, and with a server. nodes: the other ready ones, nodes of
    an engine. unseen_pods: serving ones without fresh numbers after the grace of a new pod. reason:
    METRICS_FRESH or what is wrong. no_metrics: why no conclusion is possible, None if one is.
    age_seconds: of the oldest group that was used. detail: what is missing, '' if nothing is known
    to be. metrics: the state of each serving pod's.
    """

    serving_pods: tuple[PodSample, ...]
    nodes: tuple[str, ...] = ()
    unseen_pods: tuple[str, ...] = ()
    reason: Reason = Reason.METRICS_FRESH
    no_metrics: SignalProblem | None = None
    age_seconds: float | None = None
    detail: str = ""
    metrics: Mapping[str, PodMetrics] = field(default_factory=dict, repr=False)

    @property
    def step_down_block(self) -> StepDownBlock | None:
        """Why the metrics do not allow a scale-down; None if they do."""
        if self.reason is Reason.METRICS_FRESH:
            return None
        return StepDownBlock(
            reason=self.reason,
            inputs={
                "pods": len(self.serving_pods),
                "unseen_pods": len(self.unseen_pods),
                "age_seconds": self.age_seconds,
            },
        )


def read_signals(
    observation: Observation,
    stale_after_seconds: float,
    scrape_seconds: float | None = None,
    behind_seconds: float | None = None,
) -> Signals:
    """Judge the metrics of this observation.

    stale_after_seconds: beyond this age, numbers decide nothing, not even a scale-up.
    scrape_seconds: time between scrapes, None while that is not known. behind_seconds: how late the
    store shows them.
    """
    ready = tuple(pod for pod in observation.pods if pod.ready and not pod.deleting)
    serving = tuple(pod for pod in ready if not pod.is_node)
    scrapes = scrape_seconds, behind_seconds
    found = {pod.name: metrics_of(pod, stale_after_seconds, *scrapes) for pod in serving}
    states = {name: metrics.state for name, metrics in found.items()}
    used = [metrics.age_seconds for metrics in found.values() if metrics.state in _USED]
    ages = [age for age in used if age is not None]
    signals = Signals(
        serving_pods=serving,
        nodes=tuple(pod.name for pod in ready if pod.is_node),
        age_seconds=max(ages, default=None),
        metrics=found,
    )
    problem = metrics_problem(observation)
    if problem is not None:
        return replace(signals, reason=problem.reason, no_metrics=problem)
    if not serving:
        problem = SignalProblem(reason=Reason.PENDING_PODS, detail="no pod is ready")
        if ready:
            detail = "no pod of the target runs a server"
            problem = SignalProblem(reason=Reason.METRICS_MISSING, detail=detail, names_cause=True)
        return replace(signals, reason=Reason.METRICS_MISSING, no_metrics=problem)
    usual = min(fresh_seconds(*scrapes), stale_after_seconds)
    signals = _with_limit(_judge(signals, states, usual), stale_after_seconds, scrape_seconds)
    if signals.no_metrics is None and observation.gateway is None:
        signals = _if_counted(signals)
    no_metrics, unseen = signals.no_metrics, signals.unseen_pods
    of_unseen = [pod for pod in serving if pod.name in unseen]
    cause = _cause(of_unseen)
    if no_metrics is None or no_metrics.reason is not Reason.METRICS_MISSING:
        ages = [age for name in unseen if (age := found[name].age_seconds) is not None]
        late = _late(max(ages, default=0.0), usual)
        stale = no_metrics is not None and no_metrics.reason is Reason.METRICS_STALE
        if no_metrics is not None and stale and "staleAfter" not in no_metrics.detail:
            bound = f"spec.fallback.staleAfter is {stale_after_seconds:g} s"
            so_late = (
                f"{no_metrics.detail}, {late}; {bound}: raise it if the store is always so late"
            )
            no_metrics = replace(no_metrics, detail=so_late)
        why = cause or late or not_numbers(of_unseen)
        detail = ", ".join(filter(None, (_named(unseen), why)))
        return replace(signals, no_metrics=no_metrics, detail=detail)
    if cause:
        detail = f"{cause} ({no_metrics.detail})"
        told = replace(no_metrics, detail=detail, names_cause=True)
        return replace(signals, no_metrics=told)
    if observation.runtime:
        return signals
    known = ", ".join(names())
    changed = "names that a store changed are stated in the chart's value runtimes"
    detail = f"{no_metrics.detail}: no metrics of a runtime that is known here ({known}); {changed}"
    return replace(signals, no_metrics=replace(no_metrics, detail=detail))


def drop_families(signals: Signals, lost: Sequence[tuple[str, str]]) -> Signals:
    """The signals after pods lost counters or histograms that they had: a part is missing."""
    if not lost or signals.reason is not Reason.METRICS_FRESH:
        return signals
    pods = tuple(sorted({*signals.unseen_pods, *(pod for pod, _ in lost)}))
    _, which = min(lost)
    return replace(
        signals,
        reason=Reason.METRICS_PARTIAL,
        unseen_pods=pods,
        detail=f"{_named(sorted({pod for pod, _ in lost}))}: {which}",
    )


def add_doubts(signals: Signals, doubts: Sequence[Doubt]) -> Signals:
    """The signals if windows are implausible: nothing is decided on those, or on a pod's first few.

    A pod whose counters stay implausible counts as a pod without metrics, as long as there are
    others.
    """
    if not doubts or signals.no_metrics is not None:
        return signals
    pods = tuple(sorted({*signals.unseen_pods, *(doubt.pod for doubt in doubts)}))
    unseen = len(pods) >= len(signals.serving_pods)
    newest = min(doubts, key=lambda doubt: doubt.windows)
    if newest.windows > DOUBTED_WINDOWS and not unseen:
        detail = f"{_named(sorted({doubt.pod for doubt in doubts}))}: impossible counters"
        return replace(signals, reason=Reason.METRICS_PARTIAL, unseen_pods=pods, detail=detail)
    problem = SignalProblem(
        reason=Reason.METRICS_IMPLAUSIBLE, detail=f"pod {newest.pod}: {newest.why}"
    )
    return replace(signals, reason=problem.reason, no_metrics=problem, unseen_pods=pods)


def _named(pods: Sequence[str]) -> str:
    """Which pods are concerned, the first by name; '' for none."""
    more = f" and {len(pods) - 1} more" if pods[1:] else ""
    return f"of pod {pods[0]}{more}" if pods else ""


def _late(age_seconds: float, usual_seconds: float) -> str:
    """How old the oldest sample is and what is usual, if that is less; '' if it is not.

    In steps: a condition is written whenever it changes.
    """
    if age_seconds <= usual_seconds:
        return ""
    step = _AGE_STEPS[age_seconds >= _LONG_SECONDS]
    return f"older than {age_seconds // step * step:g} s, usual are {usual_seconds:g} s"


def _cause(pods: Sequence[PodSample]) -> str:
    """Why these pods have no metrics, with names; '' if that is not known."""
    switched_off = next((pod.metrics_off for pod in pods if pod.metrics_off), "")
    if switched_off and not any(pod.engines for pod in pods):
        return switched_off
    said = next((m for pod in pods for e in pod.engines for m in e.impossible_metrics), "")
    if said:
        return said
    series = families.missing_gauges(pods)
    return _not_exported(series) if series else ""


def _not_exported(series: Sequence[str]) -> str:
    verb = "is" if len(series) == 1 else "are"
    return f"{families.in_words(series)} {verb} not exported"


def not_numbers(pods: Sequence[PodSample]) -> str:
    """The metrics of these pods that are not a number, in words; '' for none."""
    found = dict.fromkeys(m for pod in pods for e in pod.engines for m in families.not_numbers(e))
    return f"not a number: {families.in_words([*found])}" if found else ""


def _with_limit(signals: Signals, stale_after_seconds: float, scrape: float | None) -> Signals:
    """The signals; of stale metrics, whether the spec asks for more than scrapes can give."""
    least = 2.0 * (DEFAULT_SCRAPE_SECONDS if scrape is None else scrape)
    problem = signals.no_metrics
    if signals.reason is not Reason.METRICS_STALE or not problem or stale_after_seconds >= least:
        return signals
    given, wanted = format_duration(stale_after_seconds), format_duration(math.ceil(least))
    why = f"fallback.staleAfter is {given}, and two scrapes take {wanted}: set that or more"
    return replace(signals, no_metrics=replace(problem, detail=f"{problem.detail}: {why}"))


def _judge(signals: Signals, states: Mapping[str, Reason | None], usual_seconds: float) -> Signals:
    """The signals with what is wrong with them; the state None is a pod in its grace.

    usual_seconds: samples of this age are not old.
    """
    unseen = tuple(
        sorted(n for n, s in states.items() if s is not None and s is not Reason.METRICS_FRESH)
    )
    found = set(states.values())
    if found == {None}:
        problem = SignalProblem(reason=Reason.WARMING_UP, detail="no pod has been scraped yet")
        return replace(signals, reason=Reason.METRICS_MISSING, no_metrics=problem)
    if not unseen:
        return signals
    if Reason.METRICS_FRESH in found:
        return replace(signals, reason=Reason.METRICS_PARTIAL, unseen_pods=unseen)
    if Reason.METRICS_PARTIAL in found:
        old = any((signals.metrics[name].age_seconds or 0.0) > usual_seconds for name in unseen)
        reason = Reason.METRICS_STALE if old else Reason.METRICS_PARTIAL
        return replace(signals, reason=reason, unseen_pods=unseen)
    reason = next(reason for reason in _WORST_FIRST if reason in found)
    of_pods = f"{len(unseen)} of {len(states)} pods"
    said = [m for pod in signals.serving_pods for e in pod.engines for m in e.impossible_metrics]
    detail = f"{of_pods}: {said[0]}" if reason is Reason.METRICS_IMPLAUSIBLE else of_pods
    if reason is Reason.METRICS_NOT_A_NUMBER:
        detail = f"{of_pods}, {not_numbers(signals.serving_pods)}"
    problem = SignalProblem(reason=reason, detail=detail)
    return replace(signals, reason=reason, no_metrics=problem, unseen_pods=unseen)


def _if_counted(signals: Signals) -> Signals:
    """The signals, without a conclusion if the engines will never count a request."""
    series = families.missing_counters(signals.serving_pods)
    if not series:
        return signals
    detail = f"{_not_exported(series)}: no request can be counted"
    problem = SignalProblem(reason=Reason.METRICS_MISSING, detail=detail, names_cause=True)
    return replace(signals, reason=problem.reason, no_metrics=problem)
