"""Profiles name what the published packages name, as it was last read out of them."""

import json
import zipfile
from pathlib import Path

import pytest
from tests.contracts.read import (
    NAMED,
    PACKAGES,
    Package,
    contract_file,
    differences,
    names_at,
    names_in,
)

from servingslo.runtimes.catalogue import profile

ROOT = Path(__file__).parents[2]

# Put together from a prefix and a field's name, so that no source spells it out; a capture has it.
NOT_SPELT = frozenset({"vllm:cache_config_info"})
BY_RUNTIME = pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.runtime)


def kept(package: Package) -> dict:
    """The names that were read out of a package."""
    return json.loads(contract_file(package.runtime).read_text(encoding="utf-8"))


@BY_RUNTIME
def test_the_newest_name_of_each_metric_is_published(package):
    """Under its kind; where a package makes metrics in a loop, by name alone."""
    metrics = kept(package)["metrics"]
    for metric in profile(package.runtime).metrics:
        name = metric.names[0]
        kind = metrics.get(name) or metrics.get(name.removesuffix("_total"))
        assert kind in {metric.kind.value, NAMED}, name
    capacity = profile(package.runtime).capacity
    assert capacity is None or capacity.metric in NOT_SPELT


@BY_RUNTIME
def test_each_flag_is_published(package):
    """Of batch limits, and of what their defaults depend on."""
    runtime, flags = profile(package.runtime), set(kept(package)["flags"])
    launch = runtime.launch
    switches = {launch.chunked_prefill, launch.no_chunked_prefill.replace("--no-", "--"), ""}
    named = {knob.flag for knob in runtime.knobs} | {*launch.server_counts, launch.max_model_len}
    named |= switches | ({launch.throughput_mode[0]} if launch.throughput_mode else set())
    named |= {launch.metrics_on} | ({launch.metrics_off[0]} if launch.metrics_off else set())
    assert named - {""} <= flags


def test_a_renamed_metric_or_flag_is_found(tmp_path):
    """What is kept and published no more is told by name, with its kind."""
    package = Package(
        runtime="x", wheel="x", version="1", prefix="x:", metrics=("x/m.py",), flags=("x/f.py",)
    )
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/m.py", 'Gauge(name="x:busy"); Counter("x:done", "text")')
        archive.writestr("x/f.py", 'add("--places", help="--")')
        archive.writestr("x/other.py", 'Gauge("x:elsewhere"); add("--other")')
    read = names_in(wheel, package)
    assert read["metrics"] == {"x:busy": "gauge", "x:done": "counter", "x:done_total": "counter"}
    assert read["flags"] == ["--places"]
    old = {"metrics": {"x:busy": "gauge", "x:running": "gauge"}, "flags": ["--places", "--seats"]}
    assert differences({**old, "fields": ["a.b"]}, read) == [
        "x:running: gauge, published: nothing",
        "--seats: published: nothing",
        "a.b: published: nothing",
    ]
    assert differences(read, read) == []


def test_sources_that_no_wheel_has_are_read_from_their_repository(tmp_path):
    """Names that are put together from a prefix, and flags with underscores."""
    (tmp_path / "m.py").write_text(
        'Gauge(name=self.metric_prefix + "busy"); Counter(other + "done")'
    )
    (tmp_path / "f.py").write_text('option("--max_batch_size", type=int)')
    package = Package(
        runtime="x", wheel="x", version="1", prefix="x_", metrics=("m.py",), flags=("f.py",)
    )
    read = names_at(f"{tmp_path.as_uri()}/", package)
    assert read["metrics"] == {"x_busy": "gauge", "x_done": "counter", "x_done_total": "counter"}
    assert read["flags"] == ["--max_batch_size"]
