"""Find the servers in a pod, and assign its scrapes to them.

A pod may contain several servers, each with engines of the same names. A port exists once in a pod,
so the port in a scrape's `instance` identifies the server. Two scrapes of one port, by two jobs or
after the pod got another address, are of one server. Without a port the whole `instance` is used.
The servers of a pod are remembered, so an engine keeps its name while the other server is not
scraped. Otherwise one server's counters would be compared with the other's.
A proxy, or a second port of the same server, shows the page of another port. Such pages have equal
counters, scrape after scrape, or one is between the other's last two scrapes. Such ports count as
one engine until they contradict it: else demand would be doubled.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from servingslo.estimation.sample import engine_of_server

Pod = tuple[str, str]
Source = tuple[str, ...]

INSTANCE_LABEL = "instance"
_JOB_LABEL = "job"
_PORT = re.compile(r":([0-9]{1,5})(?:/.*)?")
# On these ports a proxy returns the page of another port of the pod: Istio's agent, the queue proxy
# of KServe, kube-rbac-proxy. Source: istio.io, Ports used by Istio;
# aggregate-prometheus-metrics-port in pkg/webhook/admission/pod/metrics_aggregate_injector.go of
# KServe; README of kube-rbac-proxy.
_PROXIED_PORTS = frozenset({"15020", "9088", "8443"})
# A pod that is absent for this many readings is dropped: five minutes of ticks of 15 s. Counts from
# before a longer gap are not compared (`counters.LONGEST_WINDOW_SECONDS`).
KEPT_READINGS = 20
# Pages of each port that are compared: a proxy or another job may be some scrapes behind.
_KEPT_PAGES = 4
# Of one pod, each with each other: a tenant may have any number of ports scraped.
_MOST_COMPARED = 16
# After so many readings in a row that tell so, two ports show one page, or two.
# Judgement; two engines that have served agree in no sum of seconds or tokens twice, and in few
# buckets. Of those that were once two, many more must tell so, and each time more than before:
# the counts of two engines that share requests meet now and then.
_SAME_READINGS, _APART_READINGS, _AGAIN_RATIO = 2, 2, 8
# The counts of two engines that share requests differ by about the root of twice their number. So
# few requests between two scrapes, squared, make it unlikely that each counter lies in between;
# then one reading is enough.
_LIKELY_RATIO = 4.0

_LOG = logging.getLogger(__name__)
# Instead of the part of a counter: a gauge.
GAUGE_PART = "gauge"
# The counters of a page, one that counts requests first, and its gauges.
Counts = Mapping[tuple[str, str], float]


@dataclass(slots=True)
class _Pair:
    """Two ports of a pod; the numbers are of readings in a row. one: they show one page.

    needed: readings that must tell so.
    """

    same: int = 0
    apart: int = 0
    needed: int = _SAME_READINGS
    one: bool = False

    def see(self, *sides: tuple[Counts, Sequence[Counts]]) -> None:
        """Compare each new page with those of the other port."""
        told = {_place(page, known) for page, known in sides}
        if "apart" in told:
            self.same, self.apart = 0, self.apart + 1
            if self.apart == _APART_READINGS:
                self.one, self.needed = False, _AGAIN_RATIO * self.needed
        elif told & {"equal", "between"}:
            self.same, self.apart = self.same + 1, 0
            first = self.needed == _SAME_READINGS and "equal" not in told
            likely = first and all(_is_likely(*side) for side in sides)
            self.one = self.one or likely or self.same >= self.needed


def _place(page: Counts, known: Sequence[Counts]) -> str:
    """Where a port's page is among those of another: 'equal', 'between', 'apart'; '' if unclear."""
    names = [name for name in page if name in known[-1] and name[1] != GAUGE_PART]
    if not any(page[name] for name in names):
        return ""
    alike = [one for one in known if _counters(page, names) == _counters(one, names)]
    if alike:
        # Two engines may have counted the same; one page has the same gauges, too.
        gauges = [name for name in page if name in known[-1] and name[1] == GAUGE_PART]
        same = any(_counters(page, gauges) == _counters(one, gauges) for one in alike)
        return "equal" if same else "apart"
    if any(_in_row(names, one, page, other) for one, other in pairwise(known)):
        return "between"
    ahead = _in_row(names, known[-1], page)
    before = len(known) < _KEPT_PAGES and _in_row(names, page, known[0])
    return "" if ahead or before else "apart"


def _counters(page: Counts, names: Iterable[tuple[str, str]] | None = None) -> list[float | None]:
    """The values of these names, or of all counters."""
    own = (name for name in page if name[1] != GAUGE_PART) if names is None else names
    return [page.get(name) for name in own]


def _is_likely(page: Counts, known: Sequence[Counts]) -> bool:
    """Whether a page that is between others is hardly that of another engine."""
    name = next(iter(page))
    few = (known[-1].get(name, 0.0) - known[0].get(name, 0.0)) / max(len(known) - 1, 1)
    return page[name] >= _LIKELY_RATIO * few**2


def _in_row(names: Iterable[tuple[str, str]], *pages: Counts) -> bool:
    """Whether no counter falls from one of these pages to the next."""
    return all(
        x[name] <= y[name]
        for x, y in pairwise(pages)
        for name in names
        if name in x and name in y and name[1] != GAUGE_PART
    )


class SeenServers:
    """Observed servers and engines of pods, over many readings; for one thread."""

    def __init__(self) -> None:
        self._reading = 0
        self._servers: dict[tuple[Pod, str], set[str]] = {}
        self._engines: dict[tuple[Pod, str], set[str]] = {}
        self._pages: dict[tuple[Pod, str, str], tuple[Counts, ...]] = {}
        self._pairs: dict[tuple[Pod, str, str, str], _Pair] = {}
        self._last: dict[Pod, int] = {}

    def begin(self) -> None:
        """Begin a reading; drop pods that were absent for long."""
        self._reading += 1
        gone = {pod for pod, last in self._last.items() if self._reading - last > KEPT_READINGS}
        if gone:
            self._last = {pod: at for pod, at in self._last.items() if pod not in gone}
            self._servers = {k: v for k, v in self._servers.items() if k[0] not in gone}
            self._engines = {k: v for k, v in self._engines.items() if k[0] not in gone}
            self._pages = {k: v for k, v in self._pages.items() if k[0] not in gone}
            self._pairs = {k: v for k, v in self._pairs.items() if k[0] not in gone}

    def see(self, pod: Pod, server: str, engine: str) -> None:
        """Remember that this server of the pod has this engine."""
        self._last[pod] = self._reading
        self._servers.setdefault((pod, engine), set()).add(server)
        self._engines.setdefault((pod, server), set()).add(engine)

    def first_of(self, pod: Pod, engine: str, pages: Mapping[str, Counts]) -> Mapping[str, str]:
        """The first of the pod's servers that shows the same page as each, or itself.

        pages: counters of an engine of this name, by server.
        """
        known, new, fell = {}, set(), set()
        for server, page in pages.items():
            before = self._pages.get((pod, engine, server), ())
            if not before or _counters(page) != _counters(before[-1]):
                new.add(server)
                if before and not _in_row(page, before[-1], page):
                    before = ()
                    fell.add(server)
            known[server] = (*before, *([page] if server in new else ()))[-_KEPT_PAGES:]
            self._pages[pod, engine, server] = known[server]
        first = {server: server for server in pages}
        for one, other in combinations(sorted(pages)[:_MOST_COMPARED], 2):
            pair = self._pairs.setdefault((pod, engine, one, other), _Pair())
            sides = ((one, other), (other, one))
            if fell & {one, other}:
                # The other port may show it some scrapes later.
                pair.apart = -_KEPT_PAGES
            was_one = pair.one
            pair.see(*((pages[own], known[its]) for own, its in sides if own in new))
            if pair.one != was_one:
                told = "one page" if pair.one else "two"
                _LOG.info("pod=%r ports %s and %s show %s", "/".join(pod), one, other, told)
            if pair.one:
                first[other] = min(first[other], first[one])
        return first

    def engine_count(self, pod: Pod, server: str) -> int:
        """Number of observed engines of this server of the pod."""
        return len(self._engines.get((pod, server), ()))

    def name(self, pod: Pod, server: str, engine: str) -> str:
        """The engine's name; with its server if several servers have an engine of that name."""
        several = len(self._servers.get((pod, engine), ())) > 1
        return engine_of_server(engine, server) if several else engine


def servers_of(sources: Iterable[Source], labels: tuple[str, ...]) -> Mapping[Source, str | None]:
    """The server of each scrape of one pod; None if it is ambiguous.

    labels: names of the values in a source. A server is named by its port, ':8000', or by the
    whole instance; '' if neither is known.
    """
    each = list(sources)
    if INSTANCE_LABEL not in labels:
        return dict.fromkeys(each, "")
    place = labels.index(INSTANCE_LABEL)
    ports = {source: _port(source[place]) for source in each}
    known = {port for port in ports.values() if port}
    if known:
        other = next(iter(known)) if len(known) == 1 else None
        return {source: port or other for source, port in ports.items()}
    job = labels.index(_JOB_LABEL) if _JOB_LABEL in labels else None
    by_job: dict[str, set[str]] = defaultdict(set)
    for source in each:
        by_job["" if job is None else source[job]].add(source[place])
    # One job scrapes a server once; two jobs may each use their own name for it.
    told = any(len(instances) > 1 for instances in by_job.values())
    return {source: source[place] if told else "" for source in each}


def _port(instance: str) -> str:
    """The port as ':8000'; '' if the instance has none, or only a proxy's port."""
    found = _PORT.search(instance[instance.rfind("]") + 1 :].removeprefix("http"))
    if found is None or found[1] in _PROXIED_PORTS:
        return ""
    return f":{found[1]}"
