"""The catalogue of runtimes, held against the fields it must fill and a real metrics page."""

from dataclasses import fields
from pathlib import Path

import pytest

from servingslo.errors import UnknownRuntimeError
from servingslo.estimation.sample import EngineSample
from servingslo.runtimes.catalogue import CATALOGUE, profile
from servingslo.runtimes.launch.arguments import BatchArguments
from servingslo.runtimes.profile import MetricKind

CAPTURE = Path(__file__).parents[1] / "golden" / "data" / "vllm_0.32.0_metrics.txt"
_ONE_SERIES = {MetricKind.GAUGE: "", MetricKind.COUNTER: "", MetricKind.HISTOGRAM: "_bucket"}


def test_an_unknown_runtime_is_refused_by_name():
    """Nothing falls back to a default runtime."""
    with pytest.raises(
        UnknownRuntimeError, match="runtime: 'vlm' is not allowed; allowed: vllm, sglang, triton"
    ):
        profile("vlm")


@pytest.mark.parametrize("known", CATALOGUE, ids=lambda known: known.name)
def test_every_metric_fills_a_field_of_a_sample(known):
    """Names in a profile are fields of a sample, each once, and every kind has an age."""
    of_sample = {field.name for field in fields(EngineSample)}
    of_profile = [metric.field for metric in known.metrics]
    assert len(set(of_profile)) == len(of_profile)
    assert set(of_profile) <= of_sample
    kinds = {metric.kind for metric in known.metrics}
    assert {kind for kind in MetricKind if known.age_names(kind)} == kinds
    assert {knob.field for knob in known.knobs} <= {field.name for field in fields(BatchArguments)}


def test_every_field_has_a_metric_of_some_runtime():
    """Nothing in a sample is unknown for every engine there is."""
    of_sample = {field.name for field in fields(EngineSample)}
    of_profiles = {metric.field for known in CATALOGUE for metric in known.metrics}
    not_measured = {"engine", "runtime", "max_num_seqs", "max_num_batched_tokens"}
    not_measured |= {"nan_metrics", "impossible_metrics", "sumless_metrics"}
    of_labels = {"kv_capacity_tokens", "kv_block_tokens"}
    of_labels |= {"adapters", "adapter_slots", "tokens_by_model"}
    ages = {name for name in of_sample if name.endswith("_age_seconds")}
    assert of_sample - of_profiles - of_labels == not_measured | ages


# The captured engine has no draft model, and hands no KV cache over.
_NOT_CAPTURED = {"accepted_draft_tokens_total", "transfer_seconds"}
_CAPTURED = [m for m in profile("vllm").metrics if m.field not in _NOT_CAPTURED]


@pytest.mark.parametrize("metric", _CAPTURED, ids=lambda metric: metric.field)
def test_the_newest_name_of_each_metric_is_on_a_real_page(metric):
    """A real vLLM 0.32.0 exports every metric under its first name, with its splitting label."""
    series = metric.names[0] + _ONE_SERIES[metric.kind] + "{"
    lines = [line for line in CAPTURE.read_text().splitlines() if line.startswith(series)]
    assert lines
    if metric.by_labels:
        assert all(f'{metric.by_labels[0]}="' in line for line in lines)


def test_the_capacity_labels_are_on_a_real_page_and_agree():
    """The capacity that the engine reports is the product of its blocks and their size."""
    capacity = profile("vllm").capacity
    assert capacity is not None
    page = CAPTURE.read_text()
    (line,) = [line for line in page.splitlines() if line.startswith(capacity.metric + "{")]
    labels = dict(part.split("=", 1) for part in line[line.index("{") + 1 :].split('",'))
    values = {name: value.strip('"') for name, value in labels.items()}
    product = int(values[capacity.block_tokens]) * int(values[capacity.blocks])
    assert int(values[capacity.tokens]) == product
