"""What the command line shows and takes of a resource with several pools."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cli_calls import CLI
from tests.unit.policy_world import steady, stepped
from tests.unit.pools_world import (
    DECODE,
    POOLS,
    PREFILL,
    PoolsOperator,
    one_target,
    pools_record,
    worlds,
)

from servingslo.adapters.kubernetes.resources import ResourceRecord
from servingslo.adapters.prometheus.client import Answer
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.api.v1alpha1 import API_VERSION, KIND
from servingslo.cli.cluster.explain import _lines
from servingslo.cli.live import observations_of
from servingslo.controller.recordings.recording import Recorder
from servingslo.controller.registry import checked
from servingslo.policy.inputs import Observation
from servingslo.policy.ports import ClusterMetrics
from servingslo_lab.cli.past.exported import Question, read_exported
from servingslo_lab.cli.sizing.live import GPUPrice, pools_as_planned, question_of
from servingslo_lab.cli.top import SortBy, lines, ordered, rows_of

TICKS = 24


class Story:
    """Half a dozen minutes of both pools under a load that rises. recording: a file of it."""

    def __init__(self, folder: Path) -> None:
        self.recording = folder / "fleet.jsonl"
        rate = stepped((0.0, 2.0), (150.0, 9.0))
        self.operator = PoolsOperator(worlds=worlds(rate), recorder=Recorder(self.recording))
        pools = [{**pool, "gpusPerReplica": 1} for pool in POOLS]
        self.operator.apply(pools_record(gpus=20, pools=pools))
        asyncio.run(self.operator.ticks(TICKS))
        self.operator.recorder.close()

    @property
    def record(self) -> ResourceRecord:
        """The resource as it is on the server."""
        return self.operator.resources.records["llama-chat"]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The story."""
    return Story(tmp_path_factory.mktemp("pools"))


def test_explain_begins_with_the_whole_and_has_each_pool(story: Story) -> None:
    """Counts, what binds, path with its source and parts, GPUs; then prefill, then decode."""
    told = list(_lines(story.record.status, "inference", "llama-chat"))
    text = "\n".join(told)
    whole, prefill, decode = text.split("inference/llama-chat ")[1:]
    assert "Decision: " in whole
    assert "Binds: prefill " in whole
    assert "% of requests pass prefill; a transfer takes " in whole
    assert "(assumed: nothing measures it)" in whole
    assert "  threshold of ttft p95: prefill " in whole
    assert " of at most 20" in whole
    assert prefill.startswith("pool prefill at ")
    assert decode.startswith("pool decode at ")
    assert "Objective tpot p95" in decode
    assert "Objective tpot p95" not in prefill


def test_top_has_the_pools_in_the_target_or_in_rows_of_their_own(story: Story) -> None:
    """'prefill 2/decode 5' where a target is shown; with --pools one row each below it."""
    (row,) = rows_of(story.record, by_pool=False)
    assert row.target == story.record.status["poolsSummary"]
    rows = ordered(rows_of(story.record, by_pool=True), SortBy.REPLICAS)
    table = [line.split() for line in lines(rows)]
    assert [cells[1] for cells in table[1:]] == [
        "llama-chat",
        "llama-chat/prefill",
        "llama-chat/decode",
    ]
    assert f"Deployment/{PREFILL}" in table[2]
    assert [row.pool for row in rows] == ["", "prefill", "decode"]


def test_a_pools_row_has_its_rate_and_of_variants_whether_its_objectives_are_met(
    story: Story,
) -> None:
    """Prefill and decode keep them together; a full variant misses them beside one that is not."""
    split = rows_of(story.record, by_pool=True)[1:]
    assert [(row.slo, (row.arrivals_per_second or 0.0) > 1.0) for row in split] == [
        (None, True), (None, True),
    ]  # fmt: skip
    rates = {"full": 9.0, "idle": 0.5}
    decode = worlds(decode=1)[DECODE]
    operator = PoolsOperator(
        worlds={
            name: replace(decode, named=name, rate=steady(rate)) for name, rate in rates.items()
        }
    )
    reference = {"apiVersion": "apps/v1", "kind": "Deployment"}
    variants = [
        {
            "name": name,
            "targetRef": {**reference, "name": name},
            "replicas": {"min": 1, "max": 1},
            "cost": {"gpuHourly": 2.0},
        }
        for name in rates
    ]
    operator.apply(pools_record(pools=variants))
    asyncio.run(operator.ticks(12))
    record = operator.resources.records["llama-chat"]
    assert [row.slo for row in rows_of(record, by_pool=True)[1:]] == ["False", "True"]
    pools = {one["name"]: one for one in record.status["pools"]}
    for name, rate in rates.items():
        observed = pools[name]["observed"]
        assert observed["arrivalsPerSecond"] == pytest.approx(rate, rel=0.6)
        assert observed["objectives"][0]["observedSeconds"] > 0.0


@pytest.mark.slow("servingslo.cli", "servingslo.policy.pools")
def test_plan_decides_on_a_recording_of_pools(cli: CLI, story: Story) -> None:
    """As JSON one line a tick with every pool; as text the whole and then each pool."""
    called = cli("plan", "--observations", story.recording)
    decided = [json.loads(line) for line in called.out.splitlines()]
    assert called.exit_code == 0
    assert len(decided) == TICKS
    assert all(set(one["pools"]) == {"prefill", "decode"} for one in decided)
    last = story.operator.resources.status()["replicas"]["desired"]
    assert sum(one["replicas_after"] for one in decided[-1]["pools"].values()) == last
    text = cli("plan", "--observations", story.recording, "-o", "text").out
    assert text.count("\nGPUs: ") == TICKS
    assert text.count("inference/llama-chat pool decode at ") == TICKS


def test_the_schema_describes_what_plan_prints_of_pools(cli: CLI, story: Story) -> None:
    """The line of a tick, and the decision of each pool in it."""
    described = json.loads(cli("schema", "pools-decision").out)
    line = json.loads(cli("plan", "--observations", story.recording).out.splitlines()[-1])
    assert set(line) == set(described["properties"])
    of_a_pool = set(described["$defs"]["Decision"]["properties"])
    assert all(set(one) == of_a_pool for one in line["pools"].values())


def test_fit_reads_each_pool_of_a_recording(cli: CLI, story: Story) -> None:
    """One law after the other, or that of the pool that is asked for."""
    both = json.loads(cli("fit", "--recording", story.recording, "-o", "json").out)
    names = ["inference/llama-chat prefill", "inference/llama-chat decode"]
    assert [one["workload"] for one in both] == names
    (one,) = json.loads(
        cli("fit", "--recording", story.recording, "--pool", "decode", "-o", "json").out
    )
    assert one == both[1]
    refused = cli("fit", "--recording", story.recording, "--pool", "other")
    assert refused.refuses("--pool", "other", "prefill, decode")
    assert cli("fit", "--metrics", "x", "--pool", "decode").refuses("--pool", "--recording")


def observed(story: Story) -> tuple[Observation, ...]:
    """What `record` sees of the cluster of the story."""
    pools = story.operator.pools

    class _Workloads:
        async def read(self, namespace, target, container, recognize):
            return await pools.read_workload(namespace, target, container, recognize)

    async def seen():
        metrics = await pools.read_metrics()
        return await observations_of(checked(story.record), _Workloads(), metrics)

    return asyncio.run(seen())


def test_record_observes_each_pool_at_one_time(story: Story) -> None:
    """With the name of the pool, and the pods of its target alone."""
    seen = observed(story)
    assert [one.pool for one in seen] == ["prefill", "decode"]
    assert len({one.time_seconds for one in seen}) == 1
    for one, target in zip(seen, (PREFILL, DECODE), strict=True):
        assert one.pods
        assert all(pod.name.startswith(target) for pod in one.pods)
    broken = replace(story.record, spec={})
    assert asyncio.run(observations_of(checked(broken), None, ClusterMetrics())) == ()


def test_a_sweep_asks_for_each_pool_with_its_part_of_the_promise(story: Story) -> None:
    """Prefill has no time per token to keep; thresholds are those of the last decision."""
    resource = checked(story.record)
    planned = pools_as_planned(resource)
    assert [one.metric.value for one in planned["prefill"].objectives] == ["ttft"]
    assert [one.metric.value for one in planned["decode"].objectives] == ["ttft", "tpot"]
    questions = {
        one.pool: question_of(story.record, planned[one.pool], one, GPUPrice(hourly=None))
        for one in observed(story)
    }
    for pool, question in questions.items():
        assert question.objectives == planned[pool].objectives
    assert questions["prefill"].objectives[0].threshold_seconds != 2.0
    assert questions["decode"].workload.output.mean_tokens > 100.0


class _Store:
    """A Prometheus that has both pools, and a resource that could not be decided for a while."""

    def query_range(self, promql: str, **_: object) -> Answer:
        def series(value: float, **labels: str) -> dict:
            return {"metric": labels, "values": [[7200, str(value)]]}

        if promql.startswith("count by (pool)"):
            return Answer(result=[series(1, pool="prefill"), series(1, pool="decode")])
        if "servingslo_not_ready" in promql:
            assert 'pool=~"|' in promql
            return Answer(result=[series(5, reason="InvalidSpec")])
        if "replicas_current" in promql and "over_time" in promql:
            return Answer(result=[series(3 if 'pool="prefill"' in promql else 5, name="x")])
        return Answer(result=[])

    def close(self) -> None:
        """Nothing is held."""


def test_history_has_one_pool_after_the_other() -> None:
    """Each with its own counts, and what kept the whole from being decided."""
    question = Question(
        namespace="inference", name="chat", end_seconds=7200, interval_seconds=600, count=1
    )
    config = PrometheusConfig(url="http://prometheus.test:9090")
    rows = read_exported(config, question, _Store())
    assert [(row.pool, row.replicas_greatest) for row in rows] == [("decode", 5), ("prefill", 3)]
    assert {row.limited_by for row in rows} == {"InvalidSpec"}


def test_plan_refuses_a_spec_with_other_pools_than_the_recording(cli: CLI, story: Story) -> None:
    """One target, other names, or a pool that was never observed: each an error with its line."""
    spec = pools_record().spec
    other = [{**pool, "name": f"{pool['name']}-1"} for pool in spec["pools"]]
    variants = [{**pool, "role": "Combined", "cost": {"gpuHourly": 1.0}} for pool in spec["pools"]]
    third = {**variants[0], "name": "third", "targetRef": {"kind": "Deployment", "name": "third"}}
    for changed, value in (
        (one_target(1).spec, "'prefill' is not allowed; allowed: none: the spec has no pools"),
        ({**spec, "pools": other}, "'prefill' is not allowed; allowed: prefill-1, decode-1"),
        ({**spec, "pools": [*variants, third]}, "allowed: "),
    ):
        manifest = story.recording.with_name("other.yaml")
        document = {"apiVersion": API_VERSION, "kind": KIND, "spec": changed}
        manifest.write_text(json.dumps(document))
        called = cli("plan", "-f", manifest, "--observations", story.recording)
        assert called.refuses("line ", "pool: ", value), called
