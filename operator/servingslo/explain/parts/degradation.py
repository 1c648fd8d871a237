"""Degradation for people: its changes and its line."""

from collections.abc import Iterator

from servingslo.explain.changes import Change, Knob, Setting
from servingslo.explain.format import joined, percent
from servingslo.explain.limit_sentences import LIMIT_SENTENCES
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.decisions import DegradationDecision
from servingslo.policy.routes import THOUSANDTHS
from servingslo.reasons import Reason


def degradation_lines(decided: DegradationDecision | None) -> Iterator[str]:
    """'Degradation: Degraded, 20 % to Service/chat-small of at most 50 %; ...'."""
    if decided is None:
        return
    share = "an unknown share" if decided.unread else percent(decided.after)
    share = f"{share} to Service/{decided.fallback}"
    told = f"Degradation: {decided.reason.value}, {share} of at most"
    yield f"{told} {percent(decided.max_share_ratio)}{_because(decided)}"
    if decided.detail:
        yield f"  {decided.detail}"


def degradation_pairs(decided: DegradationDecision | None) -> Iterator[tuple[str, str]]:
    """The share and its reason for the log line; nothing if no fallback is asked for."""
    if decided is None:
        return
    yield "degradation", decided.reason.value
    if decided.after:
        yield "fallback_share", f"{decided.after:.3g}"


def weights_change(decision: Decision) -> Change | None:
    """The change of a fallback's share that a decision orders; None if it orders none."""
    decided = decision.degradation
    if decided is None or decided.change_reason is None:
        return None
    because = "" if decided.cause is None else f"no further replica: {decided.cause.value}"
    return Change(
        namespace=decision.namespace,
        name=decision.name,
        target=f"HTTPRoute/{decided.route}",
        knob=Knob.ROUTE_WEIGHTS,
        settings=(
            _share_setting(round(decided.before * THOUSANDTHS), round(decided.after * THOUSANDTHS)),
        ),
        reason=decided.change_reason,
        detail=joined((because, decided.detail), "; "),
    )


def weights_put_back(resource: tuple[str, str], target: str, share: int) -> Change:
    """The owner's weights are restored. resource: namespace and name. share: in thousandths."""
    return Change(
        namespace=resource[0],
        name=resource[1],
        target=target,
        knob=Knob.ROUTE_WEIGHTS,
        settings=(_share_setting(share, 0),),
        reason=Reason.WEIGHTS_PUT_BACK,
    )


def _share_setting(before: int, after: int) -> Setting:
    return Setting(name="fallback_thousandths", before=before, after=after)


def _because(decided: DegradationDecision) -> str:
    cause = decided.cause
    return "" if cause is None else f", because {LIMIT_SENTENCES.get(cause, cause.value)}"
