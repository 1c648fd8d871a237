"""A server that answers as Prometheus would after scrapes of many engines, from a few simulated.

Every workload of a kind has the pages of one small world, under names of its own. So the answers
are as long as those of a large cluster, and making them costs little.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.chaos.prometheus import FakePrometheus
from tests.unit.policy_world import World, steady

from servingslo.adapters.prometheus.queries import NOW

TICK_SECONDS = 15.0
EPOCH_SECONDS = 1_700_000_000.0
FEWEST, KINDS = 2, 5
# Below what a replica serves at these lengths, so that no count has a reason to move.
RATE_PER_REPLICA = 0.5
_MEAN_PROMPT, _MEAN_ANSWER = 800.0, 250.0
_NAMESPACE_MARK, _POD_MARK = "@namespace@", "@pod@"
_TURN = re.compile(r'pod=~"([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of so many replicas. number: among all."""

    number: int
    replicas: int

    @property
    def namespace(self) -> str:
        """Twenty-five workloads have one namespace."""
        return f"many-{self.number // 25}"

    @property
    def name(self) -> str:
        """Of its Deployment and its ServingSLO."""
        return f"chat-{self.number}"

    @property
    def pods(self) -> Sequence[str]:
        """Names as a ReplicaSet gives them."""
        letters = "bcdfghjklmnpqrstvwxz"
        return [
            f"{self.name}-7d9f8b6c54-x{letters[i]}2k{letters[(self.number + 7 * i) % 20]}"
            for i in range(self.replicas)
        ]


def workloads_of(resources: int) -> list[Workload]:
    """Two to six replicas each, four in the mean."""
    return [Workload(number=i, replicas=FEWEST + i % KINDS) for i in range(resources)]


class Answers:
    """The answers of one moment."""

    def __init__(self, resources: int, scrape_ticks: int = 1) -> None:
        self._scrape_ticks = scrape_ticks
        self._ticks = 0
        self._workloads = workloads_of(resources)
        self._now = 0.0
        self._prometheus = FakePrometheus(lambda: EPOCH_SECONDS + self._now, lambda _: None)
        self._worlds = {
            count: World(
                rate=steady(RATE_PER_REPLICA * (count - 0.6)),
                replicas=count,
                named=f"kind{count}",
                seed=count,
                prompt_median=_MEAN_PROMPT,
                output_median=_MEAN_ANSWER,
            )
            for count in range(FEWEST, FEWEST + KINDS)
        }

    def tick(self) -> None:
        """Fifteen seconds pass, and each engine is scraped if it is time to."""
        self._now += TICK_SECONDS
        self._ticks += 1
        engines = {}
        for world in self._worlds.values():
            world.advance(self._now)
            engines |= world.service.engines
        if (self._ticks - 1) % self._scrape_ticks:
            return
        self._prometheus.scrape(EPOCH_SECONDS + self._now - 2.0, engines)

    def answer(self, promql: str, at_seconds: float | None) -> bytes:
        """The body of the answer."""
        told = self._prometheus.query(promql, deadline=float("inf"), at_seconds=at_seconds)
        if promql == NOW:
            return _body("scalar", json.dumps(told.result))
        by_pod: dict[str, list[Mapping[str, Any]]] = {}
        for series in told.result:
            by_pod.setdefault(series["metric"]["pod"], []).append(series)
        forms = {pod: _form(pod, series) for pod, series in by_pod.items()}
        turn = _TURN.search(promql)
        parts = [
            forms[own].replace(_NAMESPACE_MARK, workload.namespace).replace(_POD_MARK, pod)
            for workload in self._workloads
            for pod, own in zip(
                workload.pods,
                (p.name for p in self._worlds[workload.replicas].pods),
                strict=True,
            )
            if own in forms and (turn is None or re.fullmatch(turn[1], pod))
        ]
        joined = ",".join(parts)
        return (
            f'{{"status":"success","data":{{"resultType":"vector","result":[{joined}]}}}}'.encode()
        )


def _body(kind: str, result: str) -> bytes:
    return f'{{"status":"success","data":{{"resultType":"{kind}","result":{result}}}}}'.encode()


def _form(pod: str, series: Sequence[Mapping[str, Any]]) -> str:
    """The series of one pod as text, with marks for its names."""
    marked = []
    for one in series:
        labels = {**one["metric"], "namespace": _NAMESPACE_MARK, "pod": _POD_MARK}
        if "instance" in labels:
            labels["instance"] = f"{_POD_MARK}:8000"
        labels.pop("prometheus_replica", None)
        marked.append({"metric": labels, "value": one["value"]})
    return json.dumps(marked, separators=(",", ":"), sort_keys=True)[1:-1]


def serve(resources: int, scrape_ticks: int) -> None:
    """Answer until the process ends; the port is printed. GET /tick lets time pass."""
    answers = Answers(resources, scrape_ticks)

    class Handler(BaseHTTPRequestHandler):
        """Prometheus's two paths that are asked for, and the clock."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """One answer."""
            url = urlsplit(self.path)
            if url.path == "/tick":
                answers.tick()
                body = b"{}"
            else:
                asked = parse_qs(url.query)
                at = asked.get("time")
                body = answers.answer(asked["query"][0], None if at is None else float(at[0]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
