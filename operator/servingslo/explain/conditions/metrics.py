"""Conditions MetricsFresh and ModelTrusted: are metrics current, and does the law predict them?"""

from servingslo.explain.conditions.cause import blindness, dependent_verdict, nothing_to_scrape
from servingslo.explain.conditions.condition import ConditionStatus, Verdict
from servingslo.explain.format import joined
from servingslo.explain.parts.gpus import gpus_in_words
from servingslo.policy.decision import Decision
from servingslo.policy.decision_parts import DecisionStep
from servingslo.reasons import Reason

# Without ages: they differ on every tick, and a condition is written whenever it changes.
_METRICS = {
    Reason.NO_WAKE_UP_SIGNAL: "the target sleeps",
    Reason.METRICS_STALE: "samples are too old",
    Reason.METRICS_MISSING: "no samples of the target's pods; check the scrape and its labels",
    Reason.METRICS_PARTIAL: "some samples are missing",
    Reason.METRICS_NOT_A_NUMBER: "samples are not numbers",
    Reason.METRICS_IMPLAUSIBLE: "samples have impossible values",
    Reason.METRICS_TOO_MANY: "a page has too many series",
    Reason.SEVERAL_RUNTIMES: "the pods export the metrics of several runtimes",
    Reason.SEVERAL_MODELS: "the pods serve several models",
    Reason.MODEL_NOT_SERVED: "the pods serve other models",
    Reason.METRIC_NOT_OF_RUNTIME: "the runtime has no metric for one of the objectives",
    Reason.PROMETHEUS_UNAVAILABLE: "Prometheus does not answer",
}
_NO_LAW = {
    Reason.NO_TOKENS_GENERATED: "engines that generate or count no token have no such law; "
    "measured saturation decides",
    Reason.METRIC_NOT_OF_RUNTIME: "the runtime has no metric of the gaps between tokens, so no law "
    "is fitted: state spec.serviceLaw; measured saturation decides meanwhile",
}
_STATED_LAW = {
    Reason.LAW_FROM_SPEC: "service law from spec.serviceLaw, until one is fitted here",
    Reason.LAW_ASSUMED: "service law assumed from spec.engine.card and model, until one is fitted",
    Reason.LAW_FROM_SPEC_DOES_NOT_PREDICT: "the law of the spec does not match measurements; "
    "measured saturation decides meanwhile",
}


def metrics_fresh_verdict(decision: Decision) -> Verdict:
    """Whether every serving pod was measured recently."""
    dependent = dependent_verdict(decision)
    if dependent is not None and nothing_to_scrape(decision):
        return dependent
    if decision.metrics is Reason.METRICS_FRESH:
        seen, missing = "every pod has fresh metrics", decision.metrics_missing
        message = f"{seen}; missing: {missing}" if missing else seen
        return Verdict(ConditionStatus.TRUE, Reason.METRICS_FRESH, message)
    blind = blindness(decision)
    if blind is not None:
        return Verdict(ConditionStatus.FALSE, decision.metrics, blind_message(blind))
    # The decision's own detail may be about another subject, above all the owner of the target.
    own = decision.detail if decision.limited_by is decision.metrics else ""
    usual = (_METRICS.get(decision.metrics, "no metrics"), decision.metrics_missing)
    return Verdict(ConditionStatus.FALSE, decision.metrics, own or joined(usual, ": "))


def blind_message(step: DecisionStep) -> str:
    """What is wrong with the metrics, in words, from the step that `blindness` returns."""
    told = "" if step.inputs.get("names_cause") else _METRICS.get(step.reason, "")
    return joined((told, str(step.inputs.get("detail") or "")), ": ") or "no metrics"


def model_trusted_verdict(decision: Decision) -> Verdict:
    """Whether the law predicts the measurements; Unknown while it is learnt."""
    model = decision.model
    dependent = dependent_verdict(decision)
    if dependent is not None and not model.trusted:
        return dependent
    status, told = ConditionStatus.FALSE, "no service law is trusted"
    if model.trusted:
        message = _STATED_LAW.get(model.reason, f"service law from {model.source}")
        return Verdict(ConditionStatus.TRUE, model.reason, message)
    if model.reason is Reason.MODEL_LEARNING:
        status, told = ConditionStatus.UNKNOWN, "the service law is still being learnt"
    elif model.reason is Reason.GPUS_DISAGREE:
        told = gpus_in_words(decision.gpus)
    message = f"{told}; measured saturation decides meanwhile"
    return Verdict(status, model.reason, (_STATED_LAW | _NO_LAW).get(model.reason, message))
