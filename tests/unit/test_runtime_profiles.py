"""Runtimes that an administrator adds or changes."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml
from tests.unit import api_cases
from tests.unit.added_runtimes import ADDED, CHANGED, NAME

from servingslo.api.convert import parse_spec
from servingslo.api.runtime_profiles import runtimes_of
from servingslo.errors import InvalidInputError, InvalidSpecError
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.arguments import parse_batch_arguments
from servingslo.runtimes.profile import MetricKind


@pytest.fixture
def added() -> Iterator[None]:
    """The profiles of the page, known."""
    catalogue.add(runtimes_of({**ADDED, **CHANGED}))
    yield
    catalogue.add(())


def changed(*path: str, value: object) -> dict:
    """The page's runtime with one place changed; None removes it."""
    document = copy.deepcopy(ADDED)
    place = document[NAME]
    for key in path[:-1]:
        place = place.setdefault(key, {})
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


def test_a_runtime_that_is_added_is_one_like_the_others(added):
    """Known by its name, with its names, kinds, flags and a metric for the age of each kind."""
    profile = catalogue.profile(NAME)
    assert catalogue.known()[-1] is profile
    assert profile.metric("waiting").names == (
        "my_engine_requests_waiting", "my_engine_queue_length",
    )  # fmt: skip
    prompt, output = (profile.metric(f"{kind}_tokens_total") for kind in ("prompt", "generation"))
    assert (prompt.by_labels, prompt.only, output.only) == (("kind",), ("prompt",), ("output",))
    assert {kind for kind in MetricKind if profile.age_names(kind)} == set(MetricKind)
    found = parse_batch_arguments(["serve"], ["--max-batch-size=8"], profile)
    assert found.max_num_seqs == 8
    assert parse_spec(api_cases.changed({"runtime": NAME})).runtime == NAME


def test_a_built_in_runtime_is_changed_in_what_is_stated_alone(added):
    """One name, one port; all else is as it was."""
    before = {profile.name: profile for profile in catalogue.CATALOGUE}
    vllm, triton = catalogue.profile("vllm"), catalogue.profile("triton")
    assert [p.name for p in catalogue.known()] == [*before, NAME]
    differing = [m.field for m in vllm.metrics if m not in before["vllm"].metrics]
    assert differing == ["running"]
    assert vllm.metric("running").names == ("vllm_num_requests_running",)
    assert (vllm.knobs, vllm.default_limits) == (
        before["vllm"].knobs,
        before["vllm"].default_limits,
    )
    assert vllm.capacity == replace(before["vllm"].capacity, metric="vllm_cache_config_info")
    assert (triton.metrics, triton.model_repository_port) == (before["triton"].metrics, 9000)


def test_a_runtime_that_nobody_added_is_refused_with_those_that_there_are():
    """The API server takes any name; the operator does not."""
    with pytest.raises(
        InvalidSpecError, match=f"spec.runtime: '{NAME}' is not allowed; allowed: Auto, vllm"
    ):
        parse_spec(api_cases.changed({"runtime": NAME}))


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([1], "runtimes: [1] is not allowed; allowed: an object"),
        ({"My Engine": {}}, "runtimes.My Engine: 'My Engine' is not allowed; allowed: lower case"),
        ({NAME: None}, f"runtimes.{NAME} is missing; allowed: an object"),
        (changed("metrics", "running", value=None), "metrics.running is missing"),
        (changed("metrics", "runing", value="x"), "metrics.runing: 'runing' is not allowed"),
        (changed("metrics", "running", value='x"} or y'), "metrics.running.names[0]: "),
        (changed("metrics", "running", value="a|b"), "allowed: letters, digits, _ and :"),
        (changed("metrics", "running", value=[]), "metrics.running.names: [] is not allowed"),
        (changed("metrics", "running", value=3), "metrics.running: 3 is not allowed"),
        (
            changed("metrics", "running", value="vllm:num_requests_running"),
            "allowed: a name that is not that of running of vllm",
        ),
        (
            changed("metrics", "running", value="my_engine_first_token_seconds_count"),
            "is not allowed; allowed: a name that is not that of",
        ),
        (
            changed("metrics", "waiting", value="my_engine_requests_running"),
            "allowed: a name that is not that of",
        ),
        (
            changed("metrics", "running", value={"names": ["x"], "byLabel": "kind"}),
            "allowed: byLabel and only together",
        ),
        (
            changed("metrics", "finishedTotal", value={"names": ["x"], "only": ["stop"]}),
            "allowed: no only: every part counts",
        ),
        (
            changed("metrics", "ttftSeconds", value={"names": ["x"], "unit": 0.001}),
            "allowed: names alone, of a histogram",
        ),
        (
            changed("capacity", value={"metric": "my_info", "blocks": "blocks"}),
            f"runtimes.{NAME}.capacity: {{'metric': 'my_info', 'blocks': 'blocks'}} is not allowed",
        ),
        (
            changed("capacity", value={"metric": "vllm:cache_config_info", "tokens": "tokens"}),
            f"runtimes.{NAME}.capacity.metric: 'vllm:cache_config_info' is not allowed",
        ),
        (changed("flags", "maxSequences", value="-n"), "flags.maxSequences: '-n' is not allowed"),
        (
            {NAME: {**ADDED[NAME], "underscoresInFlags": True, "flags": {"maxSequences": "--a_b"}}},
            "flags.maxSequences: '--a_b' is not allowed; allowed: with - for _",
        ),
        (changed("engineLabel", value="a,b"), "engineLabel: 'a,b' is not allowed"),
        (changed("partLabels", value=["a b"]), "partLabels[0]: 'a b' is not allowed"),
        (changed("modelRepositoryPort", value=8000), "allowed: of triton alone"),
        (changed("port", value=8000), "port: 8000 is not allowed; allowed: no such field"),
        ({"triton": {"modelRepositoryPort": 0}}, "allowed: from 1 to 65535"),
        ({"triton": {"metrics": {"running": "x"}}}, "runtimes.triton.metrics: 'running' is not"),
        ({f"r{n}": ADDED[NAME] for n in range(17)}, "allowed: at most 16 items"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_field(document, told):
    """Path, value and what is allowed; nothing that could leave a query passes."""
    with pytest.raises(InvalidInputError, match=re.escape(told)):
        runtimes_of(document)


def test_every_command_takes_the_file(cli, tmp_path):
    """A wrong one ends the command before anything else, with its field."""
    file = tmp_path / "runtimes.yaml"
    try:
        file.write_text(yaml.safe_dump(ADDED), encoding="utf-8")
        assert cli(f"--runtime-profiles={file}", "crd").exit_code == 0
        assert catalogue.known()[-1].name == NAME
        file.write_text(yaml.safe_dump(changed("engineLabel", value="a b")), encoding="utf-8")
        called = cli(f"--runtime-profiles={file}", "run", "--prometheus-url=http://nowhere")
        assert called.refuses(f"runtimes.{NAME}.engineLabel: 'a b' is not allowed")
        file.write_text("a: [", encoding="utf-8")
        assert cli(f"--runtime-profiles={file}", "crd").refuses("allowed: a file in YAML")
        missing = tmp_path / "none"
        assert cli(f"--runtime-profiles={missing}", "crd").refuses("allowed: a readable file")
    finally:
        catalogue.add(())
