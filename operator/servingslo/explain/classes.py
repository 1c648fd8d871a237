"""Classes of requests: their lines and changes, derived from the decision alone."""

from collections.abc import Iterator

from servingslo.explain import features
from servingslo.explain.changes import Change, Knob, Setting
from servingslo.explain.format import joined, key_value_line, number, per_second, seconds
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.lanes.decision import ClassReport, LaneState

EVENT_NAME = "class"


def lanes_change(decision: Decision) -> Change | None:
    """The change of lanes that a decision orders; None if it orders none."""
    changed = [one for one in decision.classes if one.change_reason is not None]
    if not changed or changed[0].change_reason is None:
        return None
    return Change(
        namespace=decision.namespace,
        name=decision.name,
        target=f"BackendTrafficPolicy/{','.join(one.policy for one in changed)}",
        knob=Knob.LANES,
        settings=tuple(
            Setting(name=f"lane_{one.name}", before=one.before, after=one.after) for one in changed
        ),
        reason=changed[0].change_reason,
    )


def class_lines(decision: Decision) -> Iterator[str]:
    """One log line for each class, as key=value pairs; unknown values are left out."""
    for one in decision.classes:
        pairs = (
            ("namespace", decision.namespace),
            ("name", decision.name),
            ("class", one.name),
            ("priority", one.priority),
            ("state", one.state),
            ("offered", per_second(one.offered_per_second)),
            ("admitted", per_second(one.admitted_per_second)),
            ("refused", per_second(one.refused_per_second)),
            ("in_flight", None if one.in_flight is None else number(one.in_flight)),
            ("lane", one.after),
        )
        yield key_value_line(EVENT_NAME, pairs)


def class_text(decision: Decision) -> Iterator[str]:
    """The classes for people, highest first, and why lanes are as they are."""
    lanes = decision.lanes
    if lanes is None:
        return
    yield f"Classes: {joined((lanes.reason.value, lanes.detail), '; ')}"
    for one in sorted(lanes.classes, key=lambda one: -one.priority):
        yield f"  {one.name} (priority {one.priority}): {', '.join(_words(one, lanes.proxies))}"


def _words(one: ClassReport, proxies: int) -> Iterator[str]:
    if one.state is LaneState.UNSEEN or one.offered_per_second is None:
        yield "not counted at the gateway"
    else:
        yield f"{one.state.value}, {number(one.offered_per_second)}/s offered"
        if one.refused_per_second:
            yield f"{number(one.refused_per_second)}/s refused"
        if one.in_flight is not None:
            yield f"{number(one.in_flight)} in flight"
        if one.mean_seconds is not None:
            yield f"{seconds(one.mean_seconds)} on average"
    if one.after is not None:
        yield f"lane {one.after} at {each_proxy(proxies)} ({one.policy})"
    yield from features.of_class(one.features)


def each_proxy(proxies: int) -> str:
    """'its proxy', or 'each of 2 proxies'."""
    return "its proxy" if proxies == 1 else f"each of {proxies} proxies"
