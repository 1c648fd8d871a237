"""What features say of a decision, for log line and explanation; the kernel knows where it stands.

Each function is given what the features reported, by name: `Decision.features`, or that of a
decision over several pools.
"""

from collections.abc import Iterable, Iterator, Mapping

from servingslo.plugins import Aspect

Reports = Mapping[str, object]


class Text:
    """The words of one feature; each says what it has to say."""

    def pairs(self, _reports: Reports) -> Iterable[tuple[str, str]]:
        """Keys and values of the log line."""
        return ()

    def essence(self, _reports: Reports) -> object:
        """What deserves a new log line when it changes."""

    def headlines(self, _reports: Reports) -> Iterable[str]:
        """What a person on call should read first; mostly nothing."""
        return ()

    def lines(self, _reports: Reports) -> Iterable[str]:
        """The details."""
        return ()

    def of_class(self, _reports: Reports) -> Iterable[str]:
        """The details of one class of requests, by what was reported of it."""
        return ()


TEXT: Aspect[Text] = Aspect("text")


def pairs(reports: Reports) -> Iterator[tuple[str, str]]:
    """Keys and values of all features for the log line."""
    for one in TEXT.parts():
        yield from one.pairs(reports)


def essence(reports: Reports) -> tuple[object, ...]:
    """What of all features deserves a new log line when it changes."""
    return tuple(one.essence(reports) for one in TEXT.parts())


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
