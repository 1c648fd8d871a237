"""What features say of a decision, for log line and explanation; the kernel knows where it stands.

Each function is given what the features reported, by name: `Decision.features`, or that of a
decision over several pools. Those of knobs get what was decided of each: `Decision.knobs`.
"""

from collections.abc import Iterable, Iterator, Mapping

from servingslo.explain.conditions.condition import ConditionType, Verdict
from servingslo.plugins import Aspect

Reports = Mapping[str, object]
Pairs = Iterable[tuple[str, object]]


class Text:
    """The words of one feature; each says what it has to say."""

    def pairs(self, _reports: Reports) -> Iterable[tuple[str, str]]:
        """Keys and values of the log line."""
        return ()

    def essence(self, _reports: Reports) -> object:
        """What deserves a new log line when it changes, of reports and what was decided."""

    def is_news(self, before: Reports, now: Reports) -> bool:
        """Whether it deserves a new log line."""
        return self.essence(before) != self.essence(now)

    def minimum(self, _reports: Reports) -> str:
        """What states the minimum that holds; '' if it is `replicas.min`."""
        return ""

    def headlines(self, _reports: Reports) -> Iterable[str]:
        """What a person on call should read first; mostly nothing."""
        return ()

    def lines(self, _reports: Reports) -> Iterable[str]:
        """The details."""
        return ()

    def of_class(self, _reports: Reports) -> Iterable[str]:
        """The details of one class of requests, by what was reported of it."""
        return ()

    def knob_pairs(self, _knobs: Reports) -> Iterable[tuple[str, str]]:
        """Keys and values of the log line, of what was decided."""
        return ()

    def knob_lines(self, _knobs: Reports) -> Iterable[str]:
        """The details of what was decided."""
        return ()

    def verdicts(self, _knobs: Reports) -> Iterable[tuple[ConditionType, Verdict]]:
        """The conditions of what was decided."""
        return ()

    def knob_log_lines(self, _knobs: Reports) -> Iterable[tuple[str, Pairs]]:
        """Further lines of the log about what was decided: each an event, keys and values."""
        return ()


TEXT: Aspect[Text] = Aspect("text")


def pairs(reports: Reports) -> Iterator[tuple[str, str]]:
    """Keys and values of all features for the log line."""
    for one in TEXT.parts():
        yield from one.pairs(reports)


def is_news(before: Reports, now: Reports) -> bool:
    """Whether what any feature reports or decided deserves a new log line."""
    return any(one.is_news(before, now) for one in TEXT.parts())


def minimum(reports: Reports) -> str:
    """What states the minimum that holds; '' if it is `replicas.min`."""
    return next(filter(None, (one.minimum(reports) for one in TEXT.parts())), "")


def headlines(reports: Reports) -> Iterator[str]:
    """What a person on call should read first."""
    for one in TEXT.parts():
        yield from one.headlines(reports)


def lines(reports: Reports) -> Iterator[str]:
    """The details of all features."""
    for one in TEXT.parts():
        yield from one.lines(reports)


def of_class(reports: Reports) -> Iterator[str]:
    """What all features say of one class of requests."""
    for one in TEXT.parts():
        yield from one.of_class(reports)


def knob_pairs(knobs: Reports) -> Iterator[tuple[str, str]]:
    """Keys and values of what all features decided, for the log line."""
    for one in TEXT.parts():
        yield from one.knob_pairs(knobs)


def knob_lines(knobs: Reports) -> Iterator[str]:
    """The details of what all features decided."""
    for one in TEXT.parts():
        yield from one.knob_lines(knobs)


def verdicts(knobs: Reports) -> dict[ConditionType, Verdict]:
    """The conditions of what all features decided."""
    return dict(one for part in TEXT.parts() for one in part.verdicts(knobs))


def knob_log_lines(knobs: Reports) -> Iterator[tuple[str, Pairs]]:
    """The further log lines about what all features decided."""
    for one in TEXT.parts():
        yield from one.knob_log_lines(knobs)
