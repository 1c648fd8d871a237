"""The simulated engine's metrics page against a capture of the real one."""

from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.rig.simulated.engine_metrics import GPUReading, dcgm_page, vllm_page
from servingslo_lab.sim.replicas.engine import Engine

CAPTURE = Path(__file__).parents[1] / "golden" / "data" / "vllm_0.32.0_metrics.txt"
LAW = ServiceLaw(
    step_fixed_seconds=0.015,
    step_per_sequence_seconds=0.00015,
    prefill_per_token_seconds=0.00008,
    context_per_token_seconds=4e-7,
)


def loaded_engine() -> Engine:
    """An engine with 16 requests, 8 of them running, as the captured one had."""
    limits = EngineLimits(max_num_seqs=8, max_num_batched_tokens=256, kv_capacity_tokens=262144)
    engine = Engine(law=LAW, limits=limits, max_model_len=2048)
    for _ in range(16):
        request = engine.requests.add(arrival=0.0, prompt_tokens=64, output_tokens=100)
        engine.submit(request, 0.0)
    engine.advance(2.5)
    return engine


def vllm_families(text: str) -> dict[str, Metric]:
    """Families of vLLM by name, without the _created companions."""
    families = text_string_to_metric_families(text)
    return {
        family.name: family
        for family in families
        if family.name.startswith("vllm:") and not family.name.endswith("_created")
    }


def shape(family: Metric) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Sample names with their labels; values only of labels that vLLM itself defines."""
    kept = {"le", "reason", "sleep_state", "source", "finished_reason", "engine"}
    return {
        (s.name, tuple(sorted((k, v if k in kept else "") for k, v in s.labels.items())))
        for s in family.samples
    }


def test_page_has_the_families_types_and_help_of_the_real_one():
    """Every family of the capture is there with its type and text, and no other."""
    real = vllm_families(CAPTURE.read_text())
    ours = vllm_families(vllm_page(loaded_engine(), model_name="tiny"))

    assert list(ours) == list(real)
    assert {n: (f.type, f.documentation) for n, f in ours.items()} == {
        n: (f.type, f.documentation) for n, f in real.items()
    }


def test_page_has_the_labels_and_bucket_edges_of_the_real_one():
    """Every series of the capture is there: same sample names, labels, reasons and edges."""
    real = vllm_families(CAPTURE.read_text())
    ours = vllm_families(vllm_page(loaded_engine(), model_name="tiny"))

    for name, family in real.items():
        assert shape(ours[name]) == shape(family), name


def sample(text: str, name: str, **labels: str) -> float:
    """The value of the one sample with this name and these labels."""
    found = [
        s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@pytest.mark.parametrize(
    ("exported", "label"),
    [pytest.param(False, "pod", id="plain"), pytest.param(True, "exported_pod", id="exported")],
)
def test_gpu_page_names_the_pod_by_either_label_style(exported, label):
    """DCGM's page joins to a pod by the labels that were asked for."""
    reading = GPUReading(
        namespace="llm", pod="chat-0", container="vllm", node="node-1", index=3,
        utilization_ratio=0.5, kv_usage_ratio=0.2, xid_error=79,
    )  # fmt: skip
    text = dcgm_page([reading], exported_labels=exported)

    assert sample(text, "DCGM_FI_DEV_GPU_UTIL", **{label: "chat-0"}) == 50
    assert sample(text, "DCGM_FI_DEV_XID_ERRORS", gpu="3", modelName=reading.product) == 79
    used = sample(text, "DCGM_FI_DEV_FB_USED")
    assert used + sample(text, "DCGM_FI_DEV_FB_FREE") == 80 * 1024
