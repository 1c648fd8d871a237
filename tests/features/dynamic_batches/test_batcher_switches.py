"""Each switch turned off while limits are set: they are put back where it permitted them."""

import asyncio
import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.features.dynamic_batches.test_engine_channel import REF, Cluster, Server, pod, serving
from tests.unit.cli_calls import CLI

from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.cli.running import operate as operating
from servingslo.cli.running.run_options import RunOptions
from servingslo.estimation.sample import PodSample
from servingslo.features.dynamic_batches import actuator as module
from servingslo.features.dynamic_batches.actuator import PART, DynamicBatching
from servingslo.features.dynamic_batches.servers import BatcherLimits
from servingslo.policy.inputs import BatchingMode, BatchingTargets, Mode, ScaleTarget, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.recognition import Recognition

ON = ("--batching-apply=true", "--engine-range=127.0.0.0/8")
RANK = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="rank"),
    objectives=(),
    model="rank",
    batching=BatchingTargets(mode=BatchingMode.AUTO),
)
VIEW = WorkloadView(
    target=RANK.target,
    pods=(PodSample(name="rank-0", ready=True),),
    read_as=Recognition(runtime="triton"),
)


@pytest.mark.parametrize(
    ("arguments", "pools", "put_back"),
    [
        pytest.param(ON, (RANK,), False, id="nothing"),
        pytest.param((*ON, "--mode=Recommend"), (RANK,), True, id="mode"),
        pytest.param(ON[1:], (RANK,), True, id="batching-apply"),
        pytest.param((*ON, "--batching-servers-only=true"), (RANK,), False, id="servers-only"),
        pytest.param(ON, (replace(RANK, mode=Mode.PAUSED),), True, id="mode Paused"),
        pytest.param(ON, (), True, id="resource gone"),
        pytest.param(ON, (replace(RANK, batching=BatchingTargets()),), True, id="batching.mode"),
        pytest.param(ON, (replace(RANK, model="other"),), True, id="model"),
    ],
)
def test_limits_are_put_back_when_a_switch_ends_them(
    arguments, pools, put_back, capsys, monkeypatch
) -> None:
    """By an operator that starts with these options after all was written; told once."""
    found: list[RunOptions] = []

    async def operate(options: RunOptions) -> None:
        found.append(options)

    monkeypatch.setattr(operating, "operate", operate)
    called = CLI(capsys, monkeypatch)("run", "--prometheus-url=http://p", *arguments)
    assert called.exit_code == 0, called.err
    (options,) = found

    async def story() -> tuple[bool, int]:
        server = Server()
        before = copy.deepcopy(server.config)
        async with serving(server) as port:
            at = replace(profile("triton"), model_repository_port=port)
            monkeypatch.setattr(module, "profile", lambda _: at)
            record = pod_record(pod(), None)
            inventory: Any = SimpleNamespace(pods=SimpleNamespace(get=lambda *_: record))
            client: Any = Cluster(pod())
            means, _ = operating.means_of(options, client, inventory)
            servers: Any = PART(means)
            assert isinstance(servers, DynamicBatching)
            assert await servers.models.set(REF, "rank-0", port, "rank", BatcherLimits(8, 5000, 64))
            assert server.config["max_batch_size"] == 8
            await servers.in_force(REF, RANK, VIEW)
            acting = tuple(one for one in pools if acting_limit(one, options.limits) is None)
            told = await servers.undo(lambda ref: acting)
        return server.config == before, len(told)

    assert asyncio.run(story()) == (put_back, int(put_back))
