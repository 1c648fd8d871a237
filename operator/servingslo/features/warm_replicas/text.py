"""How many replicas are awake and on call, and what was done to which, for people."""

from collections.abc import Iterator

from servingslo.explain.features import Reports, Text
from servingslo.features.warm_replicas.call import warm_of
from servingslo.units import format_duration


class WarmText(Text):
    """The replicas on call."""

    def essence(self, reports: Reports) -> object:
        """Who is on call, and why nothing can be done, if so."""
        decided = warm_of(reports)
        return None if decided is None else (len(decided.on_call), decided.reason)

    def knob_pairs(self, knobs: Reports) -> Iterator[tuple[str, str]]:
        """'on_call=3 asleep=2 warm=EnginesWoken'."""
        if (decided := warm_of(knobs)) is not None:
            yield "on_call", str(len(decided.on_call))
            yield "asleep", str(decided.asleep)
            yield "warm", decided.reason.value

    def knob_lines(self, knobs: Reports) -> Iterator[str]:
        """'On call: 3 replicas, 2 of them asleep, back within 8 s; 4 are needed awake'."""
        if (decided := warm_of(knobs)) is None:
            return
        count = len(decided.on_call)
        back = format_duration(round(decided.wake_seconds))
        yield (
            f"On call: {count} replica{'' if count == 1 else 's'}, {decided.asleep} of them "
            f"asleep, back within {back}; {decided.awake} needed awake"
        )
        for done, pods in (
            ("woken", decided.wakes),
            ("put to sleep", decided.sleeps),
            ("taken out of the traffic", decided.takes_out),
        ):
            if pods:
                yield f"  {done}: {', '.join(pods)}"
        if decided.detail:
            yield f"  {decided.reason.value}: {decided.detail}"


PART = WarmText()
