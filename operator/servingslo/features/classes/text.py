"""Classes of requests: their lines, derived from the decision alone."""

from collections.abc import Iterator

from servingslo.explain import features
from servingslo.explain.features import Pairs, Reports, Text
from servingslo.explain.format import each_proxy, joined, number, per_second, seconds
from servingslo.features.classes.decision import LANES_DECIDED, ClassReport, LaneState

EVENT_NAME = "class"
# A lane at its bound refuses some in one window and none in the next; that is no news.
_EASED = (LaneState.FULL, LaneState.OPEN)


class ClassesText(Text):
    """What happens to each class."""

    def is_news(self, before: Reports, now: Reports) -> bool:
        """Whether the reason or a state changed."""
        then, lanes = LANES_DECIDED.of(before), LANES_DECIDED.of(now)
        if then is None or lanes is None or then.reason is not lanes.reason:
            return then is not lanes
        was = {one.name: one.state for one in then.classes}
        return was.keys() != {one.name for one in lanes.classes} or any(
            one.state is not was[one.name] and (was[one.name], one.state) != _EASED
            for one in lanes.classes
        )

    def knob_log_lines(self, knobs: Reports) -> Iterator[tuple[str, Pairs]]:
        """One line for each class."""
        lanes = LANES_DECIDED.of(knobs)
        for one in () if lanes is None else lanes.classes:
            yield (
                EVENT_NAME,
                (
                    ("class", one.name),
                    ("priority", one.priority),
                    ("state", one.state),
                    ("offered", per_second(one.offered_per_second)),
                    ("admitted", per_second(one.admitted_per_second)),
                    ("refused", per_second(one.refused_per_second)),
                    ("in_flight", None if one.in_flight is None else number(one.in_flight)),
                    ("lane", one.after),
                ),
            )

    def knob_lines(self, knobs: Reports) -> Iterator[str]:
        """The classes, highest first, and why lanes are as they are."""
        lanes = LANES_DECIDED.of(knobs)
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


PART = ClassesText()
