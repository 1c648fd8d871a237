"""A store that evaluates the reader's queries over given series, and refuses as managed ones do.

It knows as much of PromQL as the queries of a reading need: selectors, `or`, sums and extremes by
labels, `label_replace`, `timestamp` and differences. `or` compares labels without the metric's
name, as Prometheus does, and `or on(...)` these labels alone, with the name where it is listed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from servingslo.adapters.prometheus.client import Answer
from servingslo.errors import MetricsUnavailableError, QueryRefusedError

Labels = Mapping[str, str]
Vector = list[tuple[dict[str, str], float]]
_TOKEN = re.compile(r'\s*([A-Za-z_:][A-Za-z0-9_:]*|"(?:[^"\\]|\\.)*"|!=|=~|!~|[(){},=\-]|[0-9]+)')
# What managed stores answer 400 to, each where one of them does.
REFUSALS = {
    "name-regex": re.compile(r"__name__\s*[=!]~"),
    "offset": re.compile(r"\boffset\b"),
    "subquery": re.compile(r"\[[^\]]*:[^\]]*\]"),
    "at": re.compile(r"@"),
}
_AGGREGATE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "count": len,
}


@dataclass
class Series:
    """One series: its labels with the name, the newest value and when that was scraped."""

    labels: dict[str, str]
    value: float
    at_seconds: float


@dataclass
class ManagedStore:
    """A client of the reader. refuses: what of REFUSALS it does, and 'future' for times to come.

    limit: of characters in a query; None for any number. asked: every query so far.
    """

    now: Callable[[], float]
    series: list[Series] = field(default_factory=list)
    refuses: frozenset[str] = frozenset(REFUSALS)
    limit: int | None = None
    asked: list[str] = field(default_factory=list)

    def query(self, promql: str, *, deadline: float, at_seconds: float | None = None) -> Answer:
        """The answer of an instant query."""
        del deadline
        self.asked.append(promql)
        for name, pattern in REFUSALS.items():
            if name in self.refuses and pattern.search(promql):
                raise QueryRefusedError(f"HTTP 400: {name} is not supported")
        if self.limit is not None and len(promql) > self.limit:
            raise MetricsUnavailableError("HTTP 414")
        now = self.now()
        at = now if at_seconds is None else at_seconds
        if at > now + 1.0 and "future" in self.refuses:
            raise QueryRefusedError("HTTP 400: the time is in the future")
        if promql == "time()":
            return Answer(result=[now, f"{now}"])
        value = _Parser(promql, self.series, at).whole()
        assert isinstance(value, list)
        return Answer(result=[{"metric": m, "value": [at, f"{v!r}"]} for m, v in value])

    def close(self) -> None:
        """Nothing is held."""


class _Parser:
    """Evaluates while it reads, at one time."""

    def __init__(self, promql: str, series: Sequence[Series], at: float) -> None:
        self._tokens = _TOKEN.findall(promql)
        assert "".join(self._tokens) == re.sub(r"\s", "", promql), promql
        self._place, self._at = 0, at
        self._series: dict[str, list[Series]] = {}
        for one in series:
            self._series.setdefault(one.labels["__name__"], []).append(one)

    def whole(self) -> Vector | float:
        value = self._union()
        assert self._place == len(self._tokens)
        return value

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _next(self, wanted: str = "") -> str:
        token = self._peek()
        assert not wanted or token == wanted, (wanted, token)
        self._place += 1
        return str(token)

    def _union(self) -> Vector | float:
        left = self._difference()
        while self._peek() == "or":
            self._next()
            names = None
            if self._peek() == "on":
                self._next()
                names = self._names()
            right = self._difference()
            assert isinstance(left, list)
            assert isinstance(right, list)
            known = {_signature(labels, names) for labels, _ in left}
            left = left + [one for one in right if _signature(one[0], names) not in known]
        return left

    def _difference(self) -> Vector | float:
        left = self._operand()
        while self._peek() == "-":
            self._next()
            right = self._operand()
            assert isinstance(left, float)
            assert isinstance(right, list)
            left = [(_nameless(labels), left - value) for labels, value in right]
        return left

    def _operand(self) -> Vector | float:
        token = self._peek()
        if token == "(":
            self._next()
            value = self._union()
            self._next(")")
            return value
        if token in _AGGREGATE or token == "topk":
            return self._largest() if token == "topk" else self._aggregate()
        if token == "label_replace":
            return self._labelled()
        if token in {"time", "timestamp"}:
            self._next()
            self._next("(")
            if token == "time":
                self._next(")")
                return self._at
            found = self._selected()
            self._next(")")
            return [(_nameless(dict(one.labels)), one.at_seconds) for one in found]
        return [(dict(one.labels), one.value) for one in self._selected()]

    def _aggregate(self) -> Vector:
        combine = _AGGREGATE[self._next()]
        self._next("by")
        names = self._names()
        self._next("(")
        value = self._union()
        self._next(")")
        assert isinstance(value, list)
        groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for labels, number in value:
            key = tuple((name, labels[name]) for name in names if labels.get(name))
            groups.setdefault(key, []).append(number)
        return [(dict(key), combine(numbers)) for key, numbers in groups.items()]

    def _largest(self) -> Vector:
        """The series with the largest values of each group, whole."""
        self._next()
        self._next("by")
        names = self._names()
        self._next("(")
        count = int(self._next())
        self._next(",")
        value = self._union()
        self._next(")")
        assert isinstance(value, list)
        groups: dict[tuple[str, ...], Vector] = {}
        for labels, number in value:
            groups.setdefault(tuple(labels.get(name, "") for name in names), []).append(
                (labels, number)
            )
        ranked = (sorted(group, key=lambda one: -one[1]) for group in groups.values())
        return [one for group in ranked for one in group[:count]]

    def _names(self) -> list[str]:
        self._next("(")
        names = []
        while self._peek() != ")":
            names.append(self._next())
            if self._peek() == ",":
                self._next()
        self._next(")")
        return names

    def _labelled(self) -> Vector:
        self._next()
        self._next("(")
        value = self._union()
        texts = []
        while self._peek() == ",":
            self._next()
            texts.append(self._next()[1:-1])
        self._next(")")
        assert isinstance(value, list)
        target, replacement, source, pattern = texts
        assert (source, pattern) == ("", "")
        return [({**labels, target: replacement}, number) for labels, number in value]

    def _selected(self) -> list[Series]:
        self._next("{")
        tests: list[Callable[[Labels], bool]] = []
        named = None
        while self._peek() != "}":
            name, how, text = self._next(), self._next(), self._next()[1:-1]
            tests.append(_matcher(name, how, text))
            if (name, how) == ("__name__", "="):
                named = text
            if self._peek() == ",":
                self._next()
        self._next("}")
        every = (one for known in self._series.values() for one in known)
        among = every if named is None else self._series.get(named, ())
        return [one for one in among if all(test(one.labels) for test in tests)]


def _matcher(name: str, how: str, text: str) -> Callable[[Labels], bool]:
    if how in {"=", "!="}:
        return lambda labels: (labels.get(name, "") == text) is (how == "=")
    return lambda labels: bool(re.fullmatch(text, labels.get(name, ""))) is (how == "=~")


def _nameless(labels: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in labels.items() if name != "__name__"}


def _signature(labels: Labels, names: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    if names is not None:
        return tuple((name, labels.get(name, "")) for name in names)
    return tuple(sorted(_nameless(dict(labels)).items()))


def series_of(text: str, at_seconds: float, **target: str) -> list[Series]:
    """The series of a page in the text form, scraped at this time from a target of these labels."""
    found = []
    for line in filter(None, text.splitlines()):
        if line.startswith("#"):
            continue
        head, _, number = line.rpartition(" ")
        name, _, inner = head.partition("{")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', inner))
        found.append(Series({"__name__": name, **labels, **target}, float(number), at_seconds))
    return found
