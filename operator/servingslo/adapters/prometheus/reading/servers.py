"""Find the servers in a pod, and assign its scrapes to them.

A pod may contain several servers, each with engines of the same names. A port exists once in a pod,
so the port in a scrape's `instance` identifies the server. Two scrapes of one port, by two jobs or
after the pod got another address, are of one server. Without a port the whole `instance` is used.
The servers of a pod are remembered, so an engine keeps its name while the other server is not
scraped. Otherwise one server's counters would be compared with the other's.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

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


class SeenServers:
    """Observed servers and engines of pods, over many readings; for one thread."""

    def __init__(self) -> None:
        self._reading = 0
        self._servers: dict[tuple[Pod, str], set[str]] = {}
        self._engines: dict[tuple[Pod, str], set[str]] = {}
        self._last: dict[Pod, int] = {}

    def begin(self) -> None:
        """Begin a reading; drop pods that were absent for long."""
        self._reading += 1
        gone = {pod for pod, last in self._last.items() if self._reading - last > KEPT_READINGS}
        if gone:
            self._last = {pod: at for pod, at in self._last.items() if pod not in gone}
            for known in (self._servers, self._engines):
                for key in [key for key in known if key[0] in gone]:
                    del known[key]

    def see(self, pod: Pod, server: str, engine: str) -> None:
        """Remember that this server of the pod has this engine."""
        self._last[pod] = self._reading
        self._servers.setdefault((pod, engine), set()).add(server)
        self._engines.setdefault((pod, server), set()).add(engine)

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
