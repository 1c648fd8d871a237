"""Pods with too many series: one page must not use up the time and memory of everybody's reading.

A tenant controls a page, so nothing on it is believed, not even its own number of samples. An
answer with many more series than the last that was checked is counted by pod, in Prometheus. Pods
with too many are left out of every query for a while.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from servingslo.adapters.prometheus.client import Answer, PrometheusClient
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.servers import KEPT_READINGS, Pod
from servingslo.adapters.prometheus.vectors import Vector
from servingslo.errors import AnswerTooLargeError, QueryRefusedError
from servingslo.parsing import parsed_json
from servingslo.policy.ports import PodMetrics

_LOG = logging.getLogger(__name__)
# Series of one pod in one answer. An engine has at most some hundreds; a Triton with 300 models,
# scraped by two replicas of Prometheus, has as many. Each costs about 3 kB.
MOST_SERIES = 5000
# Of a gateway, which has all routes on one page, or of an exporter of many GPUs.
MOST_SERIES_OF_MANY = 50_000
# Of a namespace with more such pods, no pod is read: their names would make queries too long.
_MOST_NAMED = 16
# Of one series; with labels of engines it is some hundreds of bytes. And of such series of one pod.
_LONG_SERIES_BYTES, _MOST_BYTES = 1000, 1 << 20
# A quote within a label is escaped, so that neither is in one.
_BEGIN, _END = b'{"metric":{', re.compile(rb'},"(?:value|histogram)"')
# A query is first checked, then asked without the pods found, which may be still too large.
_ROUNDS = 3
_SELECTOR = re.compile(r'\{__name__="[^"]*"')


class Crowds:
    """Asks queries without the pods that have too many series; for one thread.

    left_out: those pods, and why.
    """

    def __init__(self, client: PrometheusClient, config: PrometheusConfig) -> None:
        self._client, self._config = client, config
        self._reading = 0
        self._found: dict[Pod, int] = {}
        self._checked: dict[str, int] = {}
        self.left_out: dict[Pod, str] = {}

    def begin(self) -> None:
        """Begin a reading; pods that were found long ago are read again."""
        self._reading += 1
        oldest = self._reading - KEPT_READINGS
        self._found = {pod: found for pod, found in self._found.items() if found > oldest}
        self.left_out = {pod: self.left_out[pod] for pod in self._found}

    def query(
        self, promql: str, *, deadline: float, at_seconds: float, most: int, asked_as: str = ""
    ) -> Answer:
        """The answer to an instant query, without the pods that have more than `most` series in it.

        asked_as: the same for this query in every reading; by default the query.
        Raises: MetricsUnavailableError if there is no answer, or a larger one than any may be.
        """
        for _ in range(_ROUNDS):
            queries = [_SELECTOR.sub(rf"\g<0>{m}", promql) for m in self._matchers()]
            try:
                found = [
                    self._client.query(one, deadline=deadline, at_seconds=at_seconds)
                    for one in queries
                ]
            except AnswerTooLargeError as error:
                heavy = self._heavy(error.body)
                self._leave_out(heavy)
                if not heavy and not self._find(queries, deadline, at_seconds, most):
                    raise
                continue
            size = sum(len(answer.result) + len(answer.histograms) for answer in found)
            checked = self._checked.get(asked_as or promql, 0)
            if size > checked + MOST_SERIES:
                if self._find(queries, deadline, at_seconds, most):
                    continue
                checked = size
            self._checked[asked_as or promql] = min(checked, size)
            return _joined(found)
        raise AnswerTooLargeError("again and again pods with too many series are found")

    def pods(self) -> dict[Pod, PodMetrics]:
        """The pods that are left out, each with what is said of it."""
        return {
            pod: PodMetrics(left_out=f"pod {pod[1]}, not read: {why}")
            for pod, why in self.left_out.items()
        }

    def _find(self, queries: Sequence[str], deadline: float, at_seconds: float, most: int) -> bool:
        """Whether pods have more series than that in the answers; they are left out from now on."""
        labels = self._config.namespace_label, self._config.pod_label
        crowded = {}
        for promql in queries:
            count = f"count by ({', '.join(labels)}) ({promql})"
            with suppress(QueryRefusedError):
                answer = self._client.query(count, deadline=deadline, at_seconds=at_seconds)
                for one in answer.result:
                    pod, series = self.pod_of(one["metric"]), int(float(one["value"][1]))
                    if series > most:
                        crowded[pod] = f"{series} series in one answer"
        return self._leave_out(crowded)

    def _heavy(self, body: bytes) -> dict[Pod, str]:
        """Pods whose labels alone fill an answer: a label may have any length."""
        held: dict[Pod, int] = defaultdict(int)
        for part in body.split(_BEGIN)[1:-1]:
            if len(part) > _LONG_SERIES_BYTES:
                metric = parsed_json(b"{" + _END.split(part, 1)[0] + b"}")
                held[self.pod_of(metric)] += len(part)
        return {
            pod: f"labels of {size >> 20} MiB in one answer"
            for pod, size in held.items()
            if size > _MOST_BYTES
        }

    def pod_of(self, labels: Mapping[str, str]) -> Pod:
        """The pod of a series, with '' for a label that it does not have."""
        config = self._config
        return labels.get(config.namespace_label, ""), labels.get(config.pod_label, "")

    def _leave_out(self, crowded: Mapping[Pod, str]) -> bool:
        """Leave these out from now on; series without a pod are of an exporter, and stay."""
        named = {pod: why for pod, why in crowded.items() if pod[1]}
        for pod, why in named.items():
            _LOG.warning("pod=%r left out: %s", "/".join(pod), why)
        self.left_out |= named
        self._found |= dict.fromkeys(named, self._reading)
        return bool(named)

    def _matchers(self) -> Iterator[str]:
        """Matchers that exclude the pods found: of namespaces with none, and of those with some.

        A selector cannot exclude a pair of labels. So in a namespace with such a pod, a namesake of
        another one's is left out as well, and nowhere else.
        """
        if not self._found:
            yield ""
            return
        by_namespace: dict[str, set[str]] = defaultdict(set)
        for namespace, pod in self._found:
            by_namespace[namespace].add(pod)
        label, pods_label = self._config.namespace_label, self._config.pod_label
        yield f', {label}!~"{_either(by_namespace)}"'
        few = {one: pods for one, pods in by_namespace.items() if len(pods) <= _MOST_NAMED}
        if few:
            names = _either(set().union(*few.values()))
            yield f', {label}=~"{_either(few)}", {pods_label}!~"{names}"'


def _joined(found: Sequence[Answer]) -> Answer:
    """One answer with the series of all of these."""
    result: Sequence[Any] = []
    for other in (answer.result for answer in found if len(answer.result)):
        if isinstance(result, Vector) and isinstance(other, Vector):
            result = result + other
        else:
            result = [*result, *other] if len(result) else other
    return Answer(
        result=result,
        warnings=tuple(warning for answer in found for warning in answer.warnings),
        histograms=[one for answer in found for one in answer.histograms],
    )


def _either(names: Sequence[str] | set[str] | dict[str, set[str]]) -> str:
    """A regular expression for these names; a character that no name of a pod has is any one."""
    return "|".join(sorted(re.sub(r"[^a-zA-Z0-9_-]", ".", name) for name in names))
