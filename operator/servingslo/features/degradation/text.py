"""The share that goes to a fallback, for people: log line, explanation and condition."""

from collections.abc import Iterator

from servingslo.explain.conditions.condition import ConditionStatus, ConditionType, Verdict
from servingslo.explain.features import Reports, Text
from servingslo.explain.format import percent
from servingslo.explain.limit_sentences import LIMIT_SENTENCES
from servingslo.features.degradation.share import DegradationDecision, degradation_of
from servingslo.reasons import Reason

_MESSAGES = {
    Reason.NOT_DEGRADED: "no request goes to the fallback",
    Reason.DEGRADED: "requests go to the fallback, which takes them",
    Reason.MAX_SHARE_REACHED: "maxShare is reached; what is beyond is refused or late",
    Reason.FALLBACK_FULL: "the fallback is full and gets no more for a while",
    Reason.FALLBACK_UNSEEN: "the gateway does not count the fallback apart, so it is not used",
}
_USABLE = frozenset({Reason.NOT_DEGRADED, Reason.DEGRADED, Reason.MAX_SHARE_REACHED})


class DegradationText(Text):
    """The share, why it is so, and whether the fallback can be used."""

    def essence(self, reports: Reports) -> Reason | None:
        """Why the share is what it is."""
        decided = degradation_of(reports)
        return None if decided is None else decided.reason

    def knob_pairs(self, knobs: Reports) -> Iterator[tuple[str, str]]:
        """The share and its reason."""
        if (decided := degradation_of(knobs)) is not None:
            yield "degradation", decided.reason.value
            if decided.after:
                yield "fallback_share", f"{decided.after:.3g}"

    def knob_lines(self, knobs: Reports) -> Iterator[str]:
        """'Degradation: Degraded, 20 % to Service/chat-small of at most 50 %; ...'."""
        if (decided := degradation_of(knobs)) is None:
            return
        share = "an unknown share" if decided.unread else percent(decided.after)
        share = f"{share} to Service/{decided.fallback}"
        told = f"Degradation: {decided.reason.value}, {share} of at most"
        yield f"{told} {percent(decided.max_share_ratio)}{_because(decided)}"
        if decided.detail:
            yield f"  {decided.detail}"

    def verdicts(self, knobs: Reports) -> Iterator[tuple[ConditionType, Verdict]]:
        """Whether the fallback can be used; nothing if none is asked for."""
        if (decided := degradation_of(knobs)) is not None:
            yield ConditionType.FALLBACK_USABLE, degradation_verdict(decided)


def degradation_verdict(decided: DegradationDecision) -> Verdict:
    """Whether the fallback can be used. The share changes often, so it is only in the status."""
    said = _MESSAGES.get(decided.reason, "no weight is changed")
    if decided.reason not in _MESSAGES and decided.after:
        said = f"{percent(decided.after)} of the requests go there, and {said}"
    # The requests of a usable fallback change with every tick.
    told = decided.reason not in _MESSAGES and decided.detail
    message = f"Service/{decided.fallback}: {said}" + (f": {decided.detail}" if told else "")
    usable = decided.reason in _USABLE
    status = ConditionStatus.TRUE if usable else ConditionStatus.FALSE
    if decided.reason not in _MESSAGES and decided.reason is Reason.CLUSTER_UNAVAILABLE:
        status = ConditionStatus.UNKNOWN
    return Verdict(status, decided.reason, message)


def _because(decided: DegradationDecision) -> str:
    cause = decided.cause
    return "" if cause is None else f", because {LIMIT_SENTENCES.get(cause, cause.value)}"


PART = DegradationText()
