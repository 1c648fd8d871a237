"""What a real Triton tells of itself: the facts that reading it will rest on."""

import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from servingslo_lab.rig.processes import ProcessFamily
from servingslo_lab.rig.triton import TritonModel, TritonServer, affine, missing_for_triton

pytestmark = [
    pytest.mark.rig,
    pytest.mark.slow("servingslo.runtimes.engines.triton"),
]
EMBED = TritonModel(name="embed", seconds=affine(0.03, 0.005, 8), window_microseconds=5_000)
# A table with a step: what no straight line describes.
RANK = TritonModel(name="rank", seconds=(0.01, 0.012, 0.014, 0.05, 0.052, 0.054))
MODELS = (EMBED, RANK)
REQUESTS = 150
RATE_PER_SECOND = 60.0
# Both pages round to whole microseconds for each request.
ROUNDING_RATIO = 0.01


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A real server whose two models have answered Poisson clients."""
    if missing := missing_for_triton():
        pytest.skip(missing)
    work_dir = tmp_path_factory.mktemp("triton")
    family = ProcessFamily(work_dir=work_dir, remove_work_dir=True)
    try:
        server = TritonServer(work_dir=work_dir, family=family, models=MODELS)
        server.start()
        for model in MODELS:
            _load(server, model)
        yield server
    finally:
        family.stop()


def _load(server: TritonServer, model: TritonModel) -> None:
    """Requests of one each, at random times; each is answered."""
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{server.url}/v2/models/{model.name}/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"},
    )
    answers: list[int] = []

    def ask() -> None:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            answers.append(answer.status)

    between, clients = random.Random(7), []  # noqa: S311
    for _ in range(REQUESTS):
        clients.append(threading.Thread(target=ask))
        clients[-1].start()
        time.sleep(between.expovariate(RATE_PER_SECOND))
    for client in clients:
        client.join()
    assert answers == [200] * REQUESTS


def _counters(server: TritonServer, model: TritonModel) -> dict[str, float]:
    """The server's own counters of a model, by name; the parser adds a suffix they lack."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as page:  # noqa: S310
        text = page.read().decode()
    return {
        sample.name.removesuffix("_total"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model") == model.name
    }


def _batches(server: TritonServer, model: TritonModel) -> dict[int, tuple[int, float]]:
    """Executions and their seconds, by batch size, of the statistics page."""
    url = f"{server.url}/v2/models/{model.name}/stats"
    with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310
        (stats,) = json.load(page)["model_stats"]
    return {
        one["batch_size"]: (one["compute_infer"]["count"], one["compute_infer"]["ns"] / 1e9)
        for one in stats["batch_stats"]
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_compute_time_is_counted_for_each_request(served, model):
    """The counter adds a batch's time once for each request in it, not for each execution."""
    counters, batches = _counters(served, model), _batches(served, model)
    assert counters["nv_inference_request_success"] == REQUESTS
    assert counters["nv_inference_count"] == sum(b * n for b, (n, _) in batches.items())
    assert counters["nv_inference_exec_count"] == sum(n for n, _ in batches.values())
    counted = counters["nv_inference_compute_infer_duration_us"] / 1e6
    for_each_request = sum(size * seconds for size, (_, seconds) in batches.items())
    assert counted == pytest.approx(for_each_request, rel=ROUNDING_RATIO)
    assert max(batches) > 1
    assert counted > 1.2 * sum(seconds for _, seconds in batches.values())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_time_by_batch_size_is_the_models_law(served, model):
    """Each batch takes what the model is made to take, or longer where the machine is busy."""
    for size, (count, seconds) in _batches(served, model).items():
        assert seconds / count >= model.seconds[size - 1]


def test_nothing_by_batch_size_and_no_histogram_is_exported(served):
    """The metrics page has counters alone: percentiles and the law need more than it tells."""
    names = _counters(served, EMBED)
    assert not [name for name in names if name.endswith("_bucket")]
    assert {"nv_inference_queue_duration_us", "nv_inference_pending_request_count"} <= set(names)
