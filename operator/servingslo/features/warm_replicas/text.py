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
        """'On call: 3, 2 of them asleep, back within 8s; 4 needed awake'."""
        if (decided := warm_of(knobs)) is None:
            return
        back = format_duration(round(decided.wake_seconds))
        told = f"On call: {len(decided.on_call)}, {decided.asleep} of them asleep, back within"
        yield f"{told} {back}; {decided.awake} needed awake"
        if decided.detail:
            yield f"  {decided.reason.value}: {decided.detail}"


PART = WarmText()
