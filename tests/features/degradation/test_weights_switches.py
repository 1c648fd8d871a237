"""Each switch turned off while weights are moved: they are put back where it permitted them."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli_calls import CLI
from tests.unit.test_switches import NAMESPACE, REF, Api

from servingslo.cli.running import operate as operating
from servingslo.cli.running.run_options import RunOptions
from servingslo.features.degradation.actuator import PART, RouteWeights
from servingslo.features.degradation.routes import WeightsOwner, weighted_routes
from servingslo.features.degradation.share import SHARE, TARGETS, DegradationTargets
from servingslo.policy.inputs import Mode, ScaleTarget, Targets
from servingslo.policy.ports import WorkloadView
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.reasons import Reason

ON = ("--prometheus-url=http://p", "--degradation=true")
WEIGHTS = "weights"
_MARKED = {"port": 8000, "filters": [{"type": "ResponseHeaderModifier"}]}
SPECS = {
    WEIGHTS: (
        f"/apis/gateway.networking.k8s.io/v1/namespaces/{NAMESPACE}/httproutes/chat",
        {"rules": [{"backendRefs": [{"name": "chat", "weight": 1, **_MARKED},
                                    {"name": "small", "weight": 0, **_MARKED}]}]},
    ),
}  # fmt: skip
FALLBACK = DegradationTargets(route="chat", fallback="small", max_share_ratio=0.5)
CHAT = Targets(
    target=ScaleTarget(api_version="apps/v1", kind="Deployment", name="chat"),
    objectives=(),
    features={TARGETS.name: FALLBACK},
)
MOVED = WeightsOwner(name=REF.name, uid=REF.uid, rule=0, weights=(750, 250), former=(1, 0))


def _asks(**other: str) -> Targets:
    return replace(CHAT, features={TARGETS.name: replace(FALLBACK, **other)})


async def _moved() -> Any:
    """The API server with weights that were moved."""
    api: Any = Api(SPECS)
    routes = weighted_routes(api)
    await routes.write(await routes.read(NAMESPACE, "chat"), MOVED)
    return api


@pytest.mark.parametrize(
    ("arguments", "pools", "put_back"),
    [
        pytest.param(ON, (CHAT,), False, id="nothing"),
        pytest.param((*ON, "--mode=Recommend"), (CHAT,), True, id="mode"),
        pytest.param(ON[:1], (CHAT,), True, id="degradation"),
        pytest.param(ON, (replace(CHAT, mode=Mode.PAUSED),), True, id="mode Paused"),
        pytest.param(ON, (), True, id="resource gone"),
        pytest.param(ON, (replace(CHAT, features={}),), True, id="spec.degradation"),
        pytest.param(ON, (_asks(route="x"),), True, id="route"),
        pytest.param(ON, (_asks(fallback="x"),), True, id="fallback"),
        pytest.param(ON[:1], None, False, id="another process decides"),
    ],
)
def test_weights_are_put_back_when_a_switch_ends_them(
    arguments: tuple[str, ...],
    pools: tuple[Targets, ...] | None,
    put_back: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By an operator that starts with these options after all was written; told once."""
    found: list[RunOptions] = []

    async def operate(options: RunOptions) -> None:
        found.append(options)

    monkeypatch.setattr(operating, "operate", operate)
    called = CLI(capsys, monkeypatch)("run", *arguments)
    assert called.exit_code == 0, called.err
    (options,) = found

    async def story() -> set[str]:
        api = await _moved()
        means, _ = operating.means_of(options, api, SimpleNamespace(pods=None))  # type: ignore[arg-type]
        acting = None
        if pools is not None:
            acting = tuple(one for one in pools if acting_limit(one, options.limits) is None)
        told = await PART(means).undo(lambda ref: acting)
        assert [change.refusal for change in told] == [None] * put_back
        restored: set[str] = api.own()
        return restored

    assert asyncio.run(story()) == ({WEIGHTS} if put_back else set())


async def test_what_stands_is_said_while_it_cannot_be_put_back() -> None:
    """The share that goes to the fallback; without the right to read, that it is not known."""
    api = await _moved()
    services: Any = None
    actuator = RouteWeights(weighted_routes(api), services, enabled=False)
    view = WorkloadView(target=CHAT.target)
    found = await actuator.in_force(REF, CHAT, view)
    assert found is not None
    assert found.values[SHARE] == 250
    assert found.refused is not None
    assert found.refused.reason is Reason.NOT_PERMITTED
    api.refused = "httproutes"
    unknown = await actuator.in_force(REF, CHAT, view)
    assert unknown is not None
    assert SHARE not in unknown.values
    assert unknown.refused is not None
    assert "HTTPRoute/chat cannot be read" in unknown.refused.detail
