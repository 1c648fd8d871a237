"""Every folder under examples: parsed by the product, planned with, sized with, and explained.

tests/e2e/test_examples.py applies them to a real API server.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.cli_calls import CLI

from servingslo.api.convert import fleet_from_spec
from servingslo.api.crd import KINDS
from servingslo.api.v1alpha1 import API_VERSION, KIND
from servingslo.cli.manifest import read_spec
from servingslo.controller.recordings.recording import observation_line
from servingslo.policy.inputs import Limits
from servingslo.policy.pools.planner import plan_fleet
from servingslo.policy.pools.state import FleetState
from servingslo.runtimes.catalogue import CATALOGUE, profile
from servingslo.runtimes.launch.arguments import parse_batch_arguments

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/servingslo.yaml"))
LONGEST_README_LINES = 22
# A load that one engine of `h100-8b` serves many times over within these bounds.
LOAD = ("--arrival-rate", "8", "--prompt-tokens", "1155", "--output-tokens", "211")
every_example = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def documents(folder: Path) -> list[dict[str, Any]]:
    """All objects of an example, from every manifest beside the chart's values."""
    return [
        document
        for path in sorted(folder.glob("*.yaml"))
        if path.name != "values.yaml"
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def engine(folder: Path) -> dict[str, Any]:
    """The container of an example's Deployment."""
    found = next(one for one in documents(folder) if one["kind"] == "Deployment")
    container: dict[str, Any] = found["spec"]["template"]["spec"]["containers"][0]
    return container


def single_specs(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The spec; of one with pools, what each pool would be as a target of its own."""
    if "pools" not in spec:
        return [spec]
    shared = {k: value for k, value in spec.items() if k not in {"pools", "gpus", "transfer"}}
    return [
        shared | {k: value for k, value in pool.items() if k not in {"name", "role"}}
        for pool in spec["pools"]
    ]


def test_each_has_a_number_of_its_own() -> None:
    """By which they are read; that of a feature which is gone is left out."""
    numbers = [folder.name[:3] for folder in FOLDERS]
    assert all(re.fullmatch(r"\d\d-", number) for number in numbers)
    assert len(set(numbers)) == len(numbers)


@every_example
def test_its_spec_is_accepted(folder: Path) -> None:
    """The product's own parser takes it, defaults and all."""
    fleet = fleet_from_spec(read_spec(folder / "servingslo.yaml"))
    assert all(one.targets.objectives for one in fleet.pools)


@every_example
def test_a_decision_is_planned_with_it(folder: Path, cli: CLI, seen, tmp_path: Path) -> None:
    """`servingslo plan` decides with its spec for what two loaded engines showed.

    They are vLLMs: a model of Triton cannot be sized with them, and the exit code says so.
    """
    lines = "".join(
        observation_line(replace(one, namespace="inference", name="any")) + "\n"
        for one in seen[-12:]
    )
    for spec in single_specs(read_spec(folder / "servingslo.yaml")):
        manifest = tmp_path / "servingslo.yaml"
        kind = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "any"}}
        manifest.write_text(yaml.safe_dump(kind | {"spec": spec}), encoding="utf-8")
        called = cli("plan", "-f", manifest, "--observations", "-", stdin=lines)
        seeing = spec.get("runtime") != "triton"
        assert called.exit_code == (0 if seeing else 1), called.err
        decisions = [json.loads(line) for line in called.out.splitlines()]
        assert len(decisions) == 12
        assert not seeing or any(one["binding"] for one in decisions)
        highest = spec["replicas"]["max"]
        assert all(0 < one["replicas_after"] <= highest for one in decisions)


@pytest.mark.parametrize(
    "folder",
    [folder for folder in FOLDERS if "pools" in read_spec(folder / "servingslo.yaml")],
    ids=lambda folder: folder.name,
)
def test_its_pools_are_planned_together(folder: Path, seen) -> None:
    """Each pool has a count within its bounds, and all of them are within the GPUs."""
    fleet = fleet_from_spec(read_spec(folder / "servingslo.yaml"))
    state = FleetState()
    for one in seen[-12:]:
        observations = {pool.name: one for pool in fleet.pools}
        decision, state = plan_fleet(observations, fleet, Limits(), state, one.time_seconds)
        assert set(decision.pools) == set(observations)
        for pool in fleet.pools:
            highest, after = pool.targets.replicas.maximum, decision.pools[pool.name].replicas_after
            assert after is not None
            assert highest is not None
            assert 0 < after <= highest
        assert fleet.gpus_max is None or decision.gpus.after <= fleet.gpus_max


@every_example
def test_its_objectives_can_be_met(folder: Path, cli: CLI) -> None:
    """`servingslo size` finds a count within its bounds that meets all of them."""
    for spec in single_specs(read_spec(folder / "servingslo.yaml")):
        if spec.get("runtime") == "triton":
            pytest.skip("size is about engines with tokens; Triton's law is one of whole requests")
        words = [f"{o['metric']}:p{o['percentile']}:{o['threshold']}" for o in spec["objectives"]]
        flags = [word for objective in words for word in ("--objective", objective)]
        called = cli("size", "--fleet", "h100-8b", *LOAD, *flags, "-o", "json")
        assert called.exit_code == 0, called.out + called.err
        assert json.loads(called.out)["answer"]["replicas"] <= spec["replicas"]["max"]


@every_example
def test_its_page_is_short_and_names_every_file(folder: Path) -> None:
    """A title, what it is for, commands on files that exist, and a page to read on."""
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert len(page.splitlines()) <= LONGEST_README_LINES
    files = next(line for line in page.splitlines() if line.startswith("Files: "))
    named = set(re.findall(r"`(\w+\.yaml)`", files))
    assert named == {path.name for path in folder.glob("*.yaml")}
    applied = re.findall(r"-f (examples/\S+)", page)
    assert applied
    assert all((ROOT / path).is_file() for path in applied)
    assert "../../docs/" in page


@every_example
def test_its_objects_belong_together(folder: Path) -> None:
    """One namespace; Deployments beside it are the targets; the object of a bound is labelled."""
    objects = documents(folder)
    slos = [one for one in objects if one["kind"] == "ServingSLO"]
    slo = slos[0]
    for one in objects:
        if one["kind"] not in {"Namespace", "Application", *(part.kind for part in KINDS.parts())}:
            assert one["metadata"]["namespace"] == slo["metadata"]["namespace"]
    targets = [one["metadata"]["name"] for one in objects if one["kind"] == "Deployment"]
    owners = [owner for one in slos for owner in one["spec"].get("pools") or [one["spec"]]]
    assert sorted(targets) in ([], sorted(owner["targetRef"]["name"] for owner in owners))
    via = slo["spec"].get("admission", {}).get("via")
    if via is not None:
        policy = next(one for one in objects if one["kind"] == via["kind"])
        assert policy["metadata"]["name"] == via["name"]
        assert policy["metadata"]["labels"] == {"servingslo.dev/managed": "true"}
    runtime = slo["spec"].get("runtime", "Auto")
    assert runtime == "Auto" or runtime in {one.name for one in CATALOGUE}


@pytest.mark.parametrize(
    ("folder", "runtime", "limits"),
    [
        pytest.param("16-prefill-decode", "vllm", (None, 8192), id="prefill"),
        pytest.param("01-minimal", "vllm", (64, 2048), id="minimal"),
        pytest.param("02-vllm-flags", "vllm", (128, 4096), id="flags"),
        pytest.param("03-vllm-without-flags", "vllm", (None, None), id="no-flags"),
        pytest.param("12-sglang", "sglang", (64, 8192), id="sglang"),
        pytest.param("13-gitops", "vllm", (64, 2048), id="gitops"),
    ],
)
def test_the_batch_limits_of_its_engine_are_read(
    folder: str, runtime: str, limits: tuple[int | None, int | None]
) -> None:
    """The operator reads of each command line what the example says."""
    container = engine(EXAMPLES / folder)
    read = parse_batch_arguments(container.get("command"), container["args"], profile(runtime))
    assert (read.max_num_seqs, read.max_num_batched_tokens) == limits


def test_git_states_no_replica_count() -> None:
    """Whoever states it in git takes it back from the operator."""
    deployment = next(
        one for one in documents(EXAMPLES / "13-gitops") if one["kind"] == "Deployment"
    )
    assert "replicas" not in deployment["spec"]


def test_the_index_links_every_folder() -> None:
    """The table of examples/README.md has a row for each."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[([\w-]+)\]\(\1\)", page, re.MULTILINE)
    assert linked == [*(folder.name for folder in FOLDERS), "traces"]
