"""What Kueue's Workload says of a pod that waits, where the operator may read it."""

import pytest

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps
from servingslo.adapters.kubernetes.pods.queued import (
    KUEUE_GATE,
    REFUSED_SECONDS,
    KueueMessages,
    queue_group,
)
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.adapters.kubernetes.workloads import KubernetesWorkloads
from servingslo.errors import ClusterUnavailableError, NotFoundError, PermissionDeniedError

WORDS = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu"


class _Server:
    """An API server with these Workloads under these versions, or that refuses."""

    def __init__(self, workloads=(), version="v1beta2", refuses=None):
        self.workloads, self.version, self.refuses, self.asked = workloads, version, refuses, []

    async def get(self, path, query=None):
        self.asked.append(path)
        if self.refuses is not None:
            raise self.refuses
        if f"/{self.version}/" not in path:
            raise NotFoundError(path)
        assert path.endswith("/namespaces/team/workloads")
        ((selector, value),) = query.items()
        label, _, wanted = value.partition("=")
        assert (selector, label) in {
            ("labelSelector", "kueue.x-k8s.io/job-uid"), ("fieldSelector", "metadata.name"),
        }  # fmt: skip
        return {"items": [one for one in self.workloads if one["metadata"]["name"] == wanted]}


def _workload(name, *conditions):
    told = [{"type": t, "status": s, "message": m} for t, s, m in conditions]
    return {"metadata": {"name": name}, "status": {"conditions": told}}


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        pytest.param((("QuotaReserved", "False", WORDS),), WORDS, id="no-quota"),
        pytest.param(
            (("QuotaReserved", "True", "reserved"), ("Admitted", "False", "checks are pending")),
            "checks are pending",
            id="checks",
        ),
        pytest.param((), "", id="nothing-yet"),
    ],
)
async def test_why_a_pod_is_not_admitted_is_told_in_kueues_words(version, conditions, said) -> None:
    """By the pod's uid, whichever version the cluster serves."""
    server = _Server([_workload("u-1", *conditions), _workload("u-2")], version)
    assert await KueueMessages(server).message("team", "u-1", "") == said


async def test_a_group_of_pods_has_one_workload_of_its_name() -> None:
    """A StatefulSet's pods are one Workload, which is named as their group."""
    server = _Server([_workload("chat-group", ("QuotaReserved", "False", WORDS))])
    for where in ("annotations", "labels"):
        pod = {"metadata": {where: {"kueue.x-k8s.io/pod-group-name": "chat-group"}}}
        group = queue_group(pod)
        assert await KueueMessages(server).message("team", "u-1", group) == WORDS
    assert queue_group({"metadata": {}}) == ""


@pytest.mark.parametrize("error", [PermissionDeniedError("403"), NotFoundError("no such kind")])
async def test_without_the_right_or_the_kind_nothing_is_told(error, monkeypatch) -> None:
    """The gate's name stands alone; what was refused is not asked again at every tick."""
    now = [1000.0]
    monkeypatch.setattr(SystemClock, "elapsed_seconds", staticmethod(lambda: now[0]))
    server = _Server(refuses=error)
    messages = KueueMessages(server)
    for _ in range(5):
        assert await messages.message("team", "u-1", "") == ""
        now[0] += 15.0
    asked = len(server.asked)
    assert asked <= 2
    now[0] += REFUSED_SECONDS
    server.refuses = None
    server.workloads = [_workload("u-1", ("QuotaReserved", "False", WORDS))]
    assert await messages.message("team", "u-1", "") == WORDS


async def test_an_answer_that_fails_once_is_asked_for_again() -> None:
    """A busy API server is no missing right."""
    server = _Server([_workload("u-1", ("QuotaReserved", "False", WORDS))])
    server.refuses = ClusterUnavailableError("no answer within 5 s")
    messages = KueueMessages(server)
    assert await messages.message("team", "u-1", "") == ""
    server.refuses = None
    assert await messages.message("team", "u-1", "") == WORDS


def _pod(name, minute, **metadata):
    """A pod that Kueue's gate holds since this minute."""
    own = {"namespace": "team", "name": name, "uid": name, **metadata}
    gates = {"containers": [], "schedulingGates": [{"name": KUEUE_GATE}]}
    created = f"2026-01-01T00:{minute:02}:00Z"
    return pod_record({"metadata": {**own, "creationTimestamp": created}, "spec": gates}, None)


@pytest.mark.parametrize(
    ("told", "named"),
    [
        pytest.param(("a", "b", "c"), "b", id="oldest"),
        pytest.param(("a", "c"), "c", id="oldest-that-is-told"),
        pytest.param(("d",), None, id="after-three-none-is-asked"),
        pytest.param(("gone",), None, id="not-one-that-is-deleted"),
    ],
)
async def test_the_message_of_the_oldest_pod_is_told(told, named) -> None:
    """Kueue decides in order: what the first one waits for, the others wait for too."""
    no_quota = ("QuotaReserved", "False", WORDS)
    server = _Server([_workload(name, no_quota) for name in told])
    workloads = KubernetesWorkloads(server, server, None, NoConfigMaps())
    gone = _pod("gone", 0, deletionTimestamp="2026-01-01T00:00:30Z")
    pods = [_pod("d", 9), _pod("a", 7), _pod("b", 2), _pod("c", 5), gone]
    found = await workloads._queued("team", pods)
    assert list(found) == ([] if named is None else [named])
    assert all(one.queued_by.endswith(WORDS) for one in found.values())
