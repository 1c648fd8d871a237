"""Pods with too many series: who is left out, for how long, what is asked for it, and what is said.

Invariants:
1. A pod with too many series in one answer is left out by namespace and name; all else is read.
2. A cluster that is large, or grows, has nobody left out, and is counted only when it has grown.
3. Its owner reads MetricsTooMany; with other pods that are seen, that one is missing.
"""

import pytest
from tests.unit.managed_store import ManagedStore, series_of
from tests.unit.policy_world import TARGETS

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading import crowds, reader
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.adapters.prometheus.reading.servers import KEPT_READINGS
from servingslo.controller.join import Subject, join
from servingslo.errors import AnswerTooLargeError
from servingslo.estimation.sample import PodSample
from servingslo.policy.inputs import Limits, ScaleTarget, Targets
from servingslo.policy.planner import plan
from servingslo.policy.ports import WorkloadView
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason

NOW = 1_700_000_000.0
# Fewer than in a cluster, so that the store of the tests is fast.
MOST = 100
HONEST = 'vllm:num_requests_running{engine="0"} 1\nvllm:generation_tokens_total{engine="0"} 9\n'


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(crowds, "MOST_SERIES", MOST)
    monkeypatch.setattr(reader, "MOST_SERIES", MOST)


def _page(count):
    return "".join(f'vllm:num_requests_running{{engine="{i}"}} 1\n' for i in range(count))


class _World:
    """A store with pages of pods, and one reader of it."""

    def __init__(self, **pages):
        self.pages = {("team", name.replace("_", "-")): text for name, text in pages.items()}
        self.now = NOW
        self.store = ManagedStore(lambda: self.now, [])
        config = PrometheusConfig(url="http://store.test")
        clock = lambda: self.now - 1.6e9  # noqa: E731
        self.reader = PrometheusReader(config, client=self.store, monotonic=clock)

    def read(self):
        """One reading, 15 s after the last; how many queries counted."""
        self.now += 15.0
        self.store.series = [
            one
            for (namespace, pod), text in self.pages.items()
            for one in series_of(text, self.now - 2.0, namespace=namespace, pod=pod)
        ]
        before = len(self.store.asked)
        found = self.reader._read()
        assert found.problem is None
        return found, sum("count by" in one for one in self.store.asked[before:])


def _seen(found):
    return {f"{n}/{p}": len(one.engines) for (n, p), one in found.pods.items()}


def test_only_that_pod_is_left_out():
    """Not its neighbours, and not a namesake of another namespace, which another pod may name."""
    world = _World(crowd=_page(MOST + 1), good=HONEST)
    world.pages["other", "crowd"] = HONEST
    world.pages["else", "good"] = HONEST
    for _ in range(3):
        found, counted = world.read()
        assert _seen(found) == {"team/good": 1, "team/crowd": 0, "other/crowd": 1, "else/good": 1}
    assert counted == 0
    said = found.pods["team", "crowd"].left_out
    assert said == f"pod crowd, not read: {MOST + 1} series in one answer"


def test_one_that_mends_its_page_is_read_again():
    """After five minutes; if it did not, it is counted once more."""
    world = _World(crowd=_page(MOST + 1), good=HONEST)
    world.read()
    seen, counted = [], 0
    for tick in range(2 * KEPT_READINGS + 4):
        if tick == KEPT_READINGS + 2:
            world.pages["team", "crowd"] = HONEST
        found, once = world.read()
        counted += once
        seen.append(_seen(found)["team/crowd"])
        assert _seen(found)["team/good"] == 1
    assert counted == 1
    assert (seen[KEPT_READINGS + 2], seen[-1]) == (0, 1)


def test_a_page_that_grows_slowly_is_found():
    """Each time by less than what makes an answer suspicious."""
    world = _World(crowd=_page(1), good=HONEST)
    seen = []
    for step in range(8):
        world.pages["team", "crowd"] = _page(18 * step + 1)
        seen.append(_seen(world.read()[0])["team/crowd"])
    assert seen[:6] == [1, 19, 37, 55, 73, 91]
    assert seen[6:] == [0, 0]


def test_a_large_cluster_is_counted_once():
    """Its pods are many, and none of them is."""
    world = _World(**{f"pod-{i}": _page(6) for i in range(100)})
    counts = []
    for _ in range(4):
        found, counted = world.read()
        assert set(_seen(found).values()) == {6}
        counts.append(counted)
    assert counts[0] > 0
    assert counts[1:] == [0, 0, 0]


def test_more_such_pods_than_a_query_can_name_cost_their_own_namespace_alone():
    """Their names would make the query too long."""
    crowds = {f"pod-{i}": _page(MOST + 1) for i in range(17)}
    world = _World(**crowds, good=HONEST)
    world.pages["other", "good"] = HONEST
    found, _ = world.read()
    assert _seen(found)["other/good"] == 1
    assert max(map(len, world.store.asked)) < 16_384
    assert not any(_seen(found)[f"team/pod-{i}"] for i in range(17))


def test_a_name_is_no_part_of_a_query():
    """A label of a forged series may have any text."""
    world = _World(good=HONEST)
    hostile = '"} or vector(1) #|.*'
    world.pages["team", hostile] = _page(MOST + 1)
    found, _ = world.read()
    assert _seen(found)["team/good"] == 1
    assert not any("vector(1)" in one for one in world.store.asked)


def test_an_answer_too_large_to_read_is_counted_as_well():
    """Its sender is found without it."""
    world = _World(crowd=_page(MOST + 1), good=HONEST)
    whole = world.store.query

    def query(promql, **asked):
        answer = whole(promql, **asked)
        if isinstance(answer.result, list) and len(answer.result) > MOST:
            raise AnswerTooLargeError("an answer has more than 64 MiB")
        return answer

    world.store.query = query
    found, _ = world.read()
    assert _seen(found) == {"team/good": 1, "team/crowd": 0}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        pytest.param(("crowd",), Reason.METRICS_TOO_MANY, id="alone"),
        pytest.param(("crowd", "good"), Reason.METRICS_PARTIAL, id="with-another"),
        pytest.param(("good",), Reason.METRICS_FRESH, id="not-this-workload"),
    ],
)
def test_its_owner_reads_why(names, reason):
    """With the pod's name and number of series."""
    found, _ = _World(crowd=_page(MOST + 1), good=HONEST).read()
    read_as = found.recognize("team", "vllm")(names)
    pods = tuple(PodSample(name=one, ready=True, ready_for_seconds=9e3) for one in names)
    view = WorkloadView(
        target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat"),
        desired_replicas=len(names),
        current_replicas=len(names),
        pods=pods,
        read_as=read_as,
    )
    subject = Subject(namespace="team", name="chat", uid="1", generation=1)
    observation = join(subject, view, found, now_seconds=found.time_seconds)
    targets: Targets = TARGETS
    decision, _ = plan(observation, targets, Limits(), PlannerState(), found.time_seconds)
    assert decision.metrics is reason
    if reason is not Reason.METRICS_FRESH:
        told = str([step.inputs for step in decision.steps]) + decision.metrics_missing
        assert f"pod crowd, not read: {MOST + 1} series" in told
    assert decision.replicas_before == decision.recommended_replicas
