"""A real Triton whose time is no straight line of the batch, under bursts: what the law says of it.

A table with a step has no law of the form fixed + per request·b. Beside the time of each size it
is found out and not trusted; what counters alone say is printed.
"""

import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servingslo.estimation.law.batch_rows import (
    BatchCounts,
    batch_rows,
    counted_rows,
    judged_by_size,
)
from servingslo.estimation.law.fit import Configuration, LawEstimate, LawFit, judge, learn
from servingslo.estimation.windows.counters import Window
from servingslo.models.engine.service_time import DynamicBatcher
from servingslo.models.waits.dynamic_batches import BatchTimes, saturation_per_second
from servingslo.reasons import Reason
from servingslo.rig.processes import ProcessFamily
from servingslo.rig.triton import TritonModel, TritonServer, missing_for_triton

pytestmark = [pytest.mark.rig, pytest.mark.acceptance]
STEP = TritonModel(name="step", seconds=(0.03, 0.034, 0.038, 0.1, 0.104, 0.108))
BATCHER = DynamicBatcher(largest_batch=len(STEP.seconds))
# Half a second each of few and of many, which come by the volley so that they make large batches on
# a busy machine as well: what no Poisson process of one rate does.
CALM_PER_SECOND, BURST_PER_SECOND, HALF_SECONDS = 6.0, 40.0, 0.5
VOLLEY = 6
WINDOWS, WINDOW_SECONDS = 14, 3.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A real server of that model."""
    if missing := missing_for_triton():
        pytest.skip(missing)
    work_dir = tmp_path_factory.mktemp("triton")
    family = ProcessFamily(work_dir=work_dir, remove_work_dir=True)
    try:
        server = TritonServer(work_dir=work_dir, family=family, models=(STEP,))
        server.start()
        yield server
    finally:
        family.stop()


def test_a_table_with_a_step_is_not_trusted_or_errs_on_the_safe_side(served: TritonServer) -> None:
    """By statistics and by counters alike."""
    counted, summed = LawFit(configuration=Configuration()), LawFit(configuration=Configuration())
    before, before_page = batches(served), counters(served)
    latencies: list[float] = []
    ended = threading.Event()
    clients = threading.Thread(target=lambda: burst(served, latencies, ended))
    clients.start()
    for _ in range(WINDOWS):
        time.sleep(WINDOW_SECONDS)
        now, page = batches(served), counters(served)
        counted = learn(counted, counted_rows(before, now))
        summed = learn(summed, batch_rows(window(before_page, page), BATCHER))
        before, before_page = now, page
    ended.set()
    clients.join()
    by_size = judged_by_size(judge(counted)[1], [before])
    for found, source in ((by_size, "statistics"), (judge(summed)[1], "counters")):
        print(told(found, source, before, latencies))  # noqa: T201
    assert not by_size.trusted
    assert by_size.reason is Reason.MODEL_DOES_NOT_PREDICT


def told(found: LawEstimate, source: str, ran: BatchCounts, latencies: list[float]) -> str:
    """What a reader of the run wants."""
    law = found.law
    assert law is not None
    rate = len(latencies) / (WINDOWS * WINDOW_SECONDS)
    predicted = "saturated"
    if rate < 0.95 * saturation_per_second(law, BATCHER):
        times = BatchTimes(law, BATCHER, rate)
        predicted = f"{times.quantile(times.latency_seconds, 0.95):.3f} s"
    error = "unknown" if found.fit_error is None else f"{found.fit_error:.0%}"
    full = 1e3 * law.step_seconds(len(STEP.seconds))
    return (
        f"{source}: T(b) = {1e3 * law.step_fixed_seconds:.0f} + "
        f"{1e3 * law.step_per_sequence_seconds:.1f}·b ms, error {error}, trusted {found.trusted}, "
        f"full batch {full:.0f} of {1e3 * STEP.seconds[-1]:.0f} ms; p95 {predicted} predicted, "
        f"{np.percentile(latencies, 95):.3f} s of {len(latencies)} observed; ran "
        f"{ {size: count for size, (count, _) in sorted(ran.items())} }"
    )


def burst(server: TritonServer, latencies: list[float], ended: threading.Event) -> None:
    """Clients that come in bursts, each with a connection of its own."""
    between, clients = random.Random(11), []  # noqa: S311
    began = time.monotonic()
    while not ended.is_set():
        half = int((time.monotonic() - began) / HALF_SECONDS) % 2
        many = VOLLEY if half else 1
        rate = (BURST_PER_SECOND if half else CALM_PER_SECOND) / many
        time.sleep(min(between.expovariate(rate), HALF_SECONDS))
        started = [
            threading.Thread(target=lambda: latencies.append(ask(server))) for _ in range(many)
        ]
        for client in started:
            client.start()
        clients += started
    for client in clients:
        client.join()


def ask(server: TritonServer) -> float:
    """Seconds that a request took."""
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{server.url}/v2/models/step/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"},
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        assert answer.status == 200
    return time.monotonic() - began


def batches(server: TritonServer) -> BatchCounts:
    """Executions and their microseconds by size, as the server has added them up."""
    with urllib.request.urlopen(f"{server.url}/v2/models/step/stats", timeout=10) as page:  # noqa: S310
        (stats,) = json.load(page)["model_stats"]
    return {
        one["batch_size"]: (
            one["compute_infer"]["count"],
            sum(one[f"compute_{part}"]["ns"] for part in ("input", "infer", "output")) // 1000,
        )
        for one in stats["batch_stats"]
    }


def counters(server: TritonServer) -> dict[str, float]:
    """The server's counters by name."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as page:  # noqa: S310
        text = page.read().decode()
    return {
        sample.name.removesuffix("_total").removeprefix("nv_inference_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model") == "step"
    }


def window(before: dict[str, float], now: dict[str, float]) -> Window:
    """What the counters grew by."""
    grown = {name: now[name] - before.get(name, 0.0) for name in now}
    return Window(
        pod="a",
        engine="step",
        seconds=WINDOW_SECONDS,
        finished=grown["request_success"],
        generated_tokens=grown["count"],
        executions=grown["exec_count"],
        request_seconds=grown["request_duration_us"] / 1e6,
        queued_seconds=grown["queue_duration_us"] / 1e6,
    )
