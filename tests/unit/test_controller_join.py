"""Joining what Kubernetes and Prometheus know: only what is provably this workload's counts."""

from dataclasses import replace
from itertools import permutations

import pytest

from servingslo.api.convert import targets_from_spec
from servingslo.controller.join import Subject, join
from servingslo.estimation.sample import (
    EngineSample,
    GatewayInstance,
    GatewaySample,
    GPUSample,
    PodSample,
    PrioritySample,
)
from servingslo.explain.conditions.condition import ConditionType
from servingslo.explain.conditions.derived import verdicts
from servingslo.policy.inputs import Limits, ScaleTarget, SignalProblem
from servingslo.policy.planner import plan
from servingslo.policy.ports import ClusterMetrics, EngineArguments, PodMetrics, WorkloadView
from servingslo.policy.replicas.state import PlannerState
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import names
from servingslo.runtimes.recognition import Recognition, recognized

NOW = 1_000.0
TARGET = ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat")
SPEC = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
    "objectives": [{"metric": "ttft", "percentile": 95, "threshold": "1s"}],
    "replicas": {"max": 4},
}
SUBJECT = Subject(namespace="team", name="chat", uid="u", generation=3)


def _view(*pods: str, **fields) -> WorkloadView:
    return WorkloadView(
        target=TARGET,
        desired_replicas=2,
        current_replicas=2,
        pods=tuple(PodSample(name=name, ready=True) for name in pods),
        **fields,
    )


def _metrics(*keys: tuple[str, str], problem: SignalProblem | None = None) -> ClusterMetrics:
    pod = PodMetrics(
        engines=(EngineSample(engine="0", running=3.0), EngineSample(engine="1", running=4.0)),
        gpus=(GPUSample(gpu="0"),),
    )
    return ClusterMetrics(pods=dict.fromkeys(keys, pod), problem=problem)


def test_each_pod_gets_its_own_engines() -> None:
    """Engines and GPUs go to the pod of the same namespace and name."""
    joined = join(SUBJECT, _view("a", "b"), _metrics(("team", "a")), now_seconds=NOW)
    assert [len(pod.engines) for pod in joined.pods] == [2, 0]
    assert [len(pod.gpus) for pod in joined.pods] == [1, 0]


def test_limits_come_from_the_pod_s_own_arguments() -> None:
    """During a rollout each pod keeps the limits that it was started with; unknown stays None."""
    view = _view(
        "old",
        "new",
        "bare",
        arguments={
            "old": EngineArguments(max_num_seqs=64),
            "new": EngineArguments(max_num_seqs=128, max_num_batched_tokens=2048),
        },
    )
    metrics = _metrics(("team", "old"), ("team", "new"), ("team", "bare"))
    joined = join(SUBJECT, view, metrics, now_seconds=NOW)
    limits = {
        pod.name: {(e.max_num_seqs, e.max_num_batched_tokens) for e in pod.engines}
        for pod in joined.pods
    }
    assert limits == {"old": {(64, None)}, "new": {(128, 2048)}, "bare": {(None, None)}}


def test_the_cards_of_a_pod_are_its_hardware() -> None:
    """What the GPU exporter calls them; a pod without any keeps what was known."""
    cards = tuple(
        GPUSample(gpu=str(index), product=product)
        for index, product in enumerate(("NVIDIA L4", "NVIDIA L4", None))
    )
    metrics = ClusterMetrics(pods={("team", "old"): PodMetrics(gpus=cards)})
    joined = join(SUBJECT, _view("old", "new"), metrics, now_seconds=NOW)
    assert [pod.gpu_product for pod in joined.pods] == ["NVIDIA L4", None]


def test_the_gateway_s_counts_are_those_of_this_workload_alone() -> None:
    """By the target's own name, or the stated one, in the subject's own namespace."""
    counted = {
        (namespace, name): GatewaySample(requests_total=total)
        for total, (namespace, name) in enumerate([("team", "chat"), ("team", "route"), ("b", "x")])
    }
    metrics = ClusterMetrics(gateways=counted)
    of = {
        name: join(replace(SUBJECT, gateway_name=name), _view(), metrics, now_seconds=NOW).gateway
        for name in (None, "route", "x")
    }
    assert of[None] == counted["team", "chat"]
    assert of["route"] == counted["team", "route"]
    # Read and not known there is another outcome than not read.
    assert of["x"] == GatewaySample()
    assert join(SUBJECT, _view(), _metrics(), now_seconds=NOW).gateway is None


@pytest.mark.parametrize(
    ("priorities", "known"),
    [
        pytest.param((10, -10), {"chat": 40.0, "job": 17.0}, id="each-its-own"),
        pytest.param((10, -20), {"chat": 40.0, "job": None}, id="of-which-none-came"),
        pytest.param((10, 10), {"chat": None, "job": None}, id="not-told-apart"),
    ],
)
def test_a_class_at_a_picker_is_the_requests_of_its_priority(
    priorities: tuple[int, int], known: dict[str, float | None]
) -> None:
    """And the whole is what the picker counted, not the sum of the classes."""
    picker = GatewaySample(
        instances=(GatewayInstance(name="epp", requests_total=60.0),),
        priorities=tuple(
            PrioritySample(
                priority=priority,
                instances=(GatewayInstance(name="epp", requests_total=total),),
            )
            for priority, total in ((-10, 17.0), (0, 3.0), (10, 40.0))
        ),
    )
    names = ("chat", "job")
    subject = replace(
        SUBJECT,
        routes=tuple((name, name) for name in names),
        priorities=tuple(zip(names, priorities, strict=True)),
    )
    metrics = ClusterMetrics(gateways={("team", "chat"): picker})
    joined = join(subject, _view(), metrics, now_seconds=NOW)
    assert joined.gateway == picker
    counted = {name: one.all_instances for name, one in joined.classes.items()}
    assert known == {name: of[0].requests_total if of else None for name, of in counted.items()}


def test_an_observation_is_of_the_moment_of_its_reading() -> None:
    """A turn nine seconds late in the tick moves no scrape: ages and time are of one moment."""
    engine = EngineSample(engine="0", running=1.0, counters_age_seconds=4.0)
    metrics = ClusterMetrics(
        pods={("team", "a"): PodMetrics(engines=(engine,))}, time_seconds=NOW - 9.0
    )
    view = replace(
        _view("a"), pods=(PodSample(name="a", ready=True, age_seconds=60.0, ready_for_seconds=5.0),)
    )
    joined = join(SUBJECT, view, metrics, now_seconds=NOW)
    (pod,) = joined.pods
    assert joined.time_seconds == NOW - 9.0
    assert pod.engines[0].counters_age_seconds == 4.0
    assert (pod.age_seconds, pod.ready_for_seconds) == (51.0, 0.0)
    assert joined.problems == ()


def test_a_turn_long_after_its_reading_decides_nothing() -> None:
    """A process that was stopped for two minutes between reading and plan says so."""
    metrics = replace(_metrics(("team", "a")), time_seconds=NOW - 120.0)
    (problem,) = join(SUBJECT, _view("a"), metrics, now_seconds=NOW).problems
    assert problem.reason is Reason.METRICS_STALE
    assert "120 s" in problem.detail


TRITON = Recognition(runtime="triton", exported=("triton",))


def _models(*names: str) -> ClusterMetrics:
    engines = tuple(EngineSample(engine=one, runtime="triton", waiting=0.0) for one in names)
    return ClusterMetrics(pods={("team", "a"): PodMetrics(engines=engines)})


def test_of_a_server_with_several_models_the_stated_one_is_read() -> None:
    """The others are left out, and the only one needs no statement."""
    view = _view("a", read_as=TRITON)
    stated = replace(SUBJECT, model="rank")
    joined = join(stated, view, _models("embed", "rank"), now_seconds=NOW)
    assert [engine.engine for engine in joined.pods[0].engines] == ["rank"]
    alone = join(SUBJECT, view, _models("embed"), now_seconds=NOW)
    assert [engine.engine for engine in alone.pods[0].engines] == ["embed"]
    assert not joined.problems
    assert not alone.problems


@pytest.mark.parametrize(
    ("subject", "reason", "said"),
    [
        (SUBJECT, Reason.SEVERAL_MODELS, "embed, rank"),
        (replace(SUBJECT, model="chat"), Reason.MODEL_NOT_SERVED, "embed, rank"),
        (replace(SUBJECT, metrics=("ttft",)), Reason.METRIC_NOT_OF_RUNTIME, "ttft on triton"),
    ],
)
def test_what_is_not_clear_of_a_server_of_models_is_told(subject, reason, said) -> None:
    """Nothing is guessed: which model, one that is not there, a metric that it does not have."""
    view = _view("a", read_as=TRITON)
    (problem,) = join(subject, view, _models("embed", "rank"), now_seconds=NOW).problems
    assert problem.reason is reason
    assert said in problem.detail


@pytest.mark.parametrize(("stated", "exported"), list(permutations(names(), 2)))
def test_a_page_of_another_runtime_than_the_stated_one_is_named(stated, exported) -> None:
    """The labels of the scrape are right, and are not what is blamed."""
    engine = EngineSample(engine="0", runtime=exported, running=3.0, waiting=0.0)
    metrics = ClusterMetrics(pods={("team", "a"): PodMetrics(engines=(engine,))})
    view = _view("a", read_as=recognized(stated, [exported]))
    observation = join(SUBJECT, view, metrics, now_seconds=NOW)
    assert observation.pods[0].engines == ()
    (problem,) = observation.problems
    assert problem.reason is Reason.METRICS_MISSING
    assert problem.detail == f"spec.runtime is {stated}; the pods' metrics are those of {exported}"
    decision, _ = plan(observation, targets_from_spec(SPEC), Limits(), PlannerState(), NOW)
    ready = verdicts(decision)[ConditionType.READY]
    assert ready.message == problem.detail
