"""Each switch turned off in mid-change: what was written is put back, and nothing else.

One world in which everything that the operator can write stands, written by its own adapters with
every switch on. Then the operator starts with one switch off.
"""

import asyncio
import copy
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.unit.cli_calls import CLI

from servingslo.adapters.kubernetes.gateways.limits import LIMIT_FORMS, limit_holders, taken
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.cli.running import operate as operating
from servingslo.cli.running.run import run
from servingslo.cli.running.run_options import RunOptions
from servingslo.controller.actuators.endings import PartlyUndoneError
from servingslo.controller.actuators.gateway_limits import gateway_limits
from servingslo.errors import InvalidObjectError, NotFoundError, PermissionDeniedError
from servingslo.explain.changes import Change
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import (
    AdmissionMode,
    BatchingMode,
    BatchingTargets,
    LimitKind,
    LimitObject,
    Mode,
    ScaleTarget,
    Targets,
)
from servingslo.policy.replicas.ownership import acting_limit
from servingslo.policy.routes import ClassTargets

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "servingslo-operator"
NAMESPACE = "team-a"
REF = ResourceRef(namespace=NAMESPACE, name="chat", uid="u-1")

# What stands on the cluster.
POLICY, RULE, TRIAL, BOUND = "policy", "rule", "trial", "bound on trial"
TEMPLATES = {TRIAL, BOUND}
# What features have there, each in its own module.
_STANDING = [
    import_module(f"tests.features.{path.parent.name}.standing")
    for path in sorted(ROOT.glob("tests/features/*/standing.py"))
]
_OWN = {name: one for part in _STANDING for name, one in part.specs(NAMESPACE).items()}
EVERYTHING = {POLICY, RULE, *_OWN}
ON = (
    "--prometheus-url=http://p",
    "--batching-apply=true",
    "--admission-kind=BackendTrafficPolicy",
    "--admission-kind=DestinationRule",
    "--admission-kind=EngineArguments",
)


@dataclass(frozen=True)
class Off:
    """Arguments that go, others that come, and what is put back then."""

    goes: tuple[str, ...] = ()
    comes: tuple[str, ...] = ()
    back: frozenset[str] = frozenset()


def off(*back: str, goes: str = "", comes: str = "") -> Off:
    """One switch."""
    return Off(tuple(goes.split()), tuple(comes.split()), frozenset(back) & EVERYTHING)


# Every option of `servingslo run` but those of Prometheus: what is put back, or why nothing is.
NOTHING = "writes nothing"
# Each flag of a feature with what becomes of what was written, and its values of the chart.
_OF_FEATURES = [
    yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.glob("tests/features/*/switches.yaml"))
]
SWITCHES: dict[str, Off | list[Off] | str] = {
    "mode": off(*EVERYTHING, comes="--mode=Recommend"),
    "batching_apply": off(*TEMPLATES, goes="--batching-apply=true"),
    "batching_servers_only": off(*TEMPLATES, comes="--batching-servers-only=true"),
    "admission_kind": [
        off(POLICY, goes="--admission-kind=BackendTrafficPolicy"),
        off(RULE, goes="--admission-kind=DestinationRule"),
        off(BOUND, goes="--admission-kind=EngineArguments"),
    ],
    "read_config_maps": off(comes="--read-config-maps=false"),
    "namespace": "by the chart's Job, before the rights there go: test_switched_off_by_helm",
    "max_replicas": "a count stays until it is decided anew, by the bounds of then",
    "max_step": "as max_replicas",
    "max_priority": "as max_replicas",
    "record": "appends to a file, and to nothing on the cluster",
    **{flag: why for one in _OF_FEATURES for flag, why in one.get("flags", {}).items()},
    **dict.fromkeys(
        (
            "gateway_profile_name", "gateway_workload_label",
            "gateway_namespace_label", "gateway_reporter", "gateway_pattern", "tick_seconds",
            "health_host", "health_port", "lease_namespace", "lease_name", "lease_seconds",
            "lease_renew_seconds", "lease_retry_seconds", "log_level", "log_format",
        ),
        NOTHING,
    ),
}  # fmt: skip
# The chart's values that are passed on as one of these, by their paths. All others are of sections
# that write nothing.
VALUES = {
    "mode": "mode",
    "watchNamespaces": "namespace",
    "batching.apply.enabled": "batching_apply",
    "batching.apply.serversOnly": "batching_servers_only",
    "configMaps.read.enabled": "read_config_maps",
    "configMaps.read.namespaces": "read_config_maps",
    "admission.kinds": "admission_kind",
    "limits.maxReplicas": "max_replicas",
    "limits.maxStep": "max_step",
    "limits.maxPriority": "max_priority",
    **{path: flag for one in _OF_FEATURES for path, flag in one.get("values", {}).items()},
}
# replicaCount, extraArgs and extraScalableKinds: test_switched_off_by_helm, as far as they write.
# budgets: a right to read; counts stay.
PLAIN = """
affinity commonLabels crds expectedPods extraArgs extraEnv extraScalableKinds
extraVolumeMounts
extraVolumes fullnameOverride gateway global image imagePullSecrets leaderElection logFormat
logLevel metrics metricsAuthorization monitoring nameOverride networkPolicy nodeSelector
podAnnotations
podDisruptionBudget podLabels podSecurityContext priorityClassName prometheus rbac replicaCount
resources revisionHistoryLimit runtimes securityContext serviceAccount tickSeconds tolerations
topologySpreadConstraints
"""
_PLAIN_OF_FEATURES = {name for each in _OF_FEATURES for name in each.get("plain", ())}


def _targets(kind: str, name: str, **stated: Any) -> Targets:
    objective = Objective(metric=LatencyMetric.TTFT, percentile=95.0, threshold_seconds=1.0)
    plain = Targets(
        target=ScaleTarget(api_version="apps/v1", kind=kind, name=name),
        objectives=(objective,),
        batching=BatchingTargets(mode=BatchingMode.AUTO),
        admission_mode=AdmissionMode.AUTO,
    )
    return replace(plain, **stated)


def _via(kind: LimitKind) -> LimitObject:
    return LimitObject(kind=kind, name="chat")


# One resource that asks for all of it: its pools.
CHAT = _targets(
    "Deployment",
    "chat",
    admission_via=_via(LimitKind.BACKEND_TRAFFIC_POLICY),
)
QUEUED = _targets("Deployment", "queued", admission_via=_via(LimitKind.ENGINE_ARGUMENTS))
LLAMA = _targets("Deployment", "llama", admission_via=_via(LimitKind.DESTINATION_RULE))
POOLS = (CHAT, QUEUED, LLAMA)


_SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    POLICY: (
        f"/apis/{LIMIT_FORMS[0].api_version}/namespaces/{NAMESPACE}/{LIMIT_FORMS[0].plural}/chat",
        {"targetRefs": [{"kind": "HTTPRoute", "name": "chat"}]},
    ),
    RULE: (
        f"/apis/{LIMIT_FORMS[1].api_version}/namespaces/{NAMESPACE}/{LIMIT_FORMS[1].plural}/chat",
        {"trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 400}}}},
    ),
    **_OWN,
}  # fmt: skip
_KINDS = {
    "/apis/apps/v1": {"resources": [{"kind": "Deployment", "name": "deployments",
                                     "namespaced": True}]},
}  # fmt: skip


@dataclass
class Api:
    """The API server as far as it is asked: these objects, and JSON Patch with tests.

    specs: path and spec of each object by its name here. refused: words of paths that the
    operator's account may not use.
    """

    specs: Mapping[str, tuple[str, dict[str, Any]]] = field(default_factory=lambda: _SPECS)
    items: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    version: int = 1

    def __post_init__(self) -> None:
        for path, spec in self.specs.values():
            metadata = {
                "name": path.rpartition("/")[2], "namespace": NAMESPACE, "uid": path,
                "resourceVersion": "1", "generation": 1,
                "labels": {"servingslo.dev/managed": "true"},
            }  # fmt: skip
            self.items[path] = {
                "metadata": metadata,
                "spec": copy.deepcopy(spec),
                "status": {"observedGeneration": 1, "updatedReplicas": 1},
            }

    async def get(self, path: str, _query: object = None) -> dict[str, Any]:
        """One object, or all of a kind."""
        if path in _KINDS:
            return _KINDS[path]
        if self.refused and re.search(self.refused, path):
            raise PermissionDeniedError(f"GET {path}: 403")
        if path in self.items:
            return copy.deepcopy(self.items[path])
        plural = path.rpartition("/")[2]
        found = [one for at, one in self.items.items() if f"/{plural}/" in at]
        if "/namespaces/" in path and not path.endswith(f"/{NAMESPACE}/{plural}"):
            raise NotFoundError(path)
        return {"items": copy.deepcopy(found), "metadata": {}}

    async def patch(self, path: str, changes: Any, _kind: object, **_: object) -> None:
        """All of it, or nothing."""
        if self.refused and re.search(self.refused, path):
            raise PermissionDeniedError(f"PATCH {path}: 403")
        item = copy.deepcopy(self.items[path])
        for change in changes:
            *parts, last = (p.replace("~1", "/") for p in change["path"].strip("/").split("/"))
            place: Any = item
            for part in parts:
                place = place[int(part)] if isinstance(place, list) else place[part]
            key: Any = int(last) if isinstance(place, list) else last
            if change["op"] == "test" and place[key] != change["value"]:
                raise InvalidObjectError("test failed")
            if change["op"] == "remove":
                del place[key]
            elif change["op"] != "test":
                place[key] = change["value"]
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.items[path] = item

    def permitted(self, _namespace: str) -> Any:
        """So many seconds."""
        return nullcontext(5.0)

    def own(self) -> set[str]:
        """What is as its owner had it."""
        return {
            name for name, (path, spec) in self.specs.items() if self.items[path]["spec"] == spec
        }


async def _written(api: Any) -> None:
    """Everything is in mid-change."""
    for form in LIMIT_FORMS:
        holders = limit_holders(api, form)
        holder = await holders.read(NAMESPACE, "chat")
        await holders.write(holder, taken(holder, REF.name, REF.uid, 40))
    for part in _STANDING:
        await part.written(api, REF)
    assert not api.own()


@pytest.fixture
def options(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunOptions]:
    """What `servingslo run` makes of arguments."""
    found: list[RunOptions] = []

    async def operate(options: RunOptions) -> None:
        found.append(options)

    def parsed(*arguments: str) -> RunOptions:
        called = cli("run", *arguments)
        assert called.exit_code == 0, called.err
        return found.pop()

    monkeypatch.setattr(operating, "operate", operate)
    return parsed


def _play(
    options: RunOptions,
    pools: tuple[Targets, ...],
    refused: str = "",
) -> tuple[set[str], list[Change], Api]:
    """What is put back by an operator that starts with these options after all was written."""

    async def story() -> tuple[set[str], list[Change], Api]:
        api: Any = Api()
        means, _ = operating.means_of(options, api, SimpleNamespace(pods=None))  # type: ignore[arg-type]
        await _written(api)
        api.refused = refused
        actuators = [row(means) for row in options.actuators]
        acting = tuple(one for one in pools if acting_limit(one, options.limits) is None)
        told = [change for one in actuators for change in await one.undo(lambda ref: acting)]
        return api.own(), told, api

    return asyncio.run(story())


ROWS = [
    pytest.param(one, id=f"{name} {' '.join((*one.goes, *one.comes))}")
    for name, rows in SWITCHES.items()
    if not isinstance(rows, str)
    for one in (rows if isinstance(rows, list) else [rows])
]


def _arguments(switch: Off) -> list[str]:
    return [*(one for one in ON if one not in switch.goes), *switch.comes]


@pytest.mark.parametrize("switch", ROWS)
def test_what_a_switch_permitted_is_put_back_when_it_is_off(switch, options) -> None:
    """Exactly that, whoever still asks for it; each is told once."""
    back, told, _ = _play(options(*_arguments(switch)), POOLS)
    assert back == switch.back
    assert len(told) == len(switch.back)
    assert all(change.refusal is None for change in told)


# By what a tenant changes: the resource's mode, a knob's, or what it names.
SPECS: dict[str, tuple[tuple[Targets, ...], set[str]]] = {
    "nothing": (POOLS, set()),
    "mode Recommend": (tuple(replace(one, mode=Mode.RECOMMEND) for one in POOLS), EVERYTHING),
    "mode Paused": (tuple(replace(one, mode=Mode.PAUSED) for one in POOLS), EVERYTHING),
    "resource gone": ((), EVERYTHING),
    "batching.mode": (
        tuple(
            replace(one, batching=BatchingTargets(mode=BatchingMode.RECOMMEND)) for one in POOLS
        ),
        TEMPLATES,
    ),
    "admission.mode": (
        tuple(replace(one, admission_mode=AdmissionMode.RECOMMEND) for one in POOLS),
        {POLICY, RULE, BOUND},
    ),
    "admission.via": (
        (replace(CHAT, admission_via=None), QUEUED, LLAMA),
        {POLICY},
    ),
    "admission.via of engines": ((CHAT, replace(QUEUED, admission_via=None), LLAMA), {BOUND}),
    "classes": (
        (
            replace(
                CHAT,
                admission_via=None,
                classes=(ClassTargets(name="job", route="job", policy="job"),),
            ),
            QUEUED,
            LLAMA,
        ),
        {POLICY},
    ),
    "targetRef": (
        (replace(CHAT, target=QUEUED.target), QUEUED, LLAMA),
        {TRIAL},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_what_a_resource_asks_for_no_more_is_put_back(name, options) -> None:
    """With every switch on."""
    pools, expected = SPECS[name]
    back, _, _ = _play(options(*ON), pools)
    assert back == expected & EVERYTHING


def test_what_another_process_decides_about_stays(options) -> None:
    """Under another Lease, even with all switches off: that process has the same switches."""
    parsed = options(ON[0])

    async def story() -> set[str]:
        api: Any = Api()
        holders = limit_holders(api, LIMIT_FORMS[0])
        holder = await holders.read(NAMESPACE, "chat")
        await holders.write(holder, taken(holder, "chat", "u", 40))
        means, _ = operating.means_of(parsed, api, SimpleNamespace(pods=None))  # type: ignore[arg-type]
        for row in parsed.actuators:
            assert not await row(means).undo(lambda ref: None)
        return set(_SPECS) - api.own()

    assert asyncio.run(story()) == {POLICY}


def test_where_the_rights_went_with_the_switches_nothing_fails_and_the_rest_is_done(
    options,
) -> None:
    """Policies may not even be read any more; a trial that may not be patched is told."""
    away = r"backendtrafficpolicies|destinationrules|/chat$"
    back, told, _ = _play(options(ON[0]), POOLS, refused=away)
    assert back == {BOUND} & EVERYTHING
    refused = [change.target for change in told if change.refusal is not None]
    assert refused == ["Deployment/chat"] * (TRIAL in EVERYTHING)


@pytest.mark.parametrize(("away", "left"), [("backendtraffic", RULE), ("destinationrules", POLICY)])
def test_a_kind_that_may_not_be_listed_keeps_none_from_the_other(away, left, options) -> None:
    """With every switch on, and no resource any more: what could be put back is, and is told."""
    parsed = options(*ON)

    async def story() -> tuple[set[str], list[str]]:
        api: Any = Api()
        for form in LIMIT_FORMS:
            holders = limit_holders(api, form)
            holder = await holders.read(NAMESPACE, "chat")
            await holders.write(holder, taken(holder, REF.name, REF.uid, 40))
        api.refused = away
        means, _ = operating.means_of(parsed, api, SimpleNamespace(pods=None))  # type: ignore[arg-type]
        with pytest.raises(PartlyUndoneError, match=away) as told:
            await gateway_limits(means).undo(lambda ref: ())
        return {POLICY, RULE} & api.own(), [one.target for one in told.value.made]

    back, told = asyncio.run(story())
    assert back == {left}
    assert len(told) == 1


def test_every_option_of_the_operator_has_a_row() -> None:
    """A new one says what is put back without it, or why nothing is."""
    found = inspect.signature(run).parameters
    assert {name for name in found if not name.startswith("prometheus_")} == set(SWITCHES)


def _leaves(values: Any, path: str = "") -> list[str]:
    if isinstance(values, dict) and values:
        return [leaf for key, one in values.items() for leaf in _leaves(one, f"{path}.{key}")]
    return [path.removeprefix(".")]


def test_every_value_of_the_chart_has_a_row() -> None:
    """It is passed on as an option with a row, or its section writes nothing."""
    leaves = _leaves(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))
    plain = {*PLAIN.split(), *_PLAIN_OF_FEATURES}
    others = {leaf for leaf in leaves if leaf.partition(".")[0] not in plain}
    assert others == set(VALUES)
    assert set(VALUES.values()) <= set(SWITCHES)
    files = ("_helpers.tpl", "_features.tpl")
    passed = "".join((CHART / "templates" / one).read_text(encoding="utf-8") for one in files)
    for name in VALUES.values():
        assert f"--{name.replace('_', '-')}" in passed, name
