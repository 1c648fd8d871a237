"""Answers of Prometheus put together: what is told twice counts once."""

from typing import Any

import pytest

from servingslo.adapters.prometheus.assembly import Assembly
from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo.runtimes.dcgm import DCGM

CONFIG = PrometheusConfig(url="http://prometheus.test:9090")
TOKENS, LATENCY = "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds"


def _series(name: str, value: float, **labels: str) -> dict[str, Any]:
    metric = {"__name__": name, "namespace": "team", "pod": "chat-0", "engine": "0", **labels}
    return {"metric": metric, "value": [1.0, str(value)]}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_series_that_an_answer_repeats_counts_once(times: int) -> None:
    """A proxy in front of several servers may hand the same series on more than once."""
    assembly = Assembly(CATALOGUE, DCGM, CONFIG)
    assembly.add_numbers(times * [_series(TOKENS, 500.0, model_name="m")])
    assembly.add_histograms(
        times
        * [
            _series(f"{LATENCY}_bucket", 3.0, le="1.0", model_name="m"),
            _series(f"{LATENCY}_bucket", 5.0, le="+Inf", model_name="m"),
            _series(f"{LATENCY}_sum", 4.0, model_name="m"),
            _series(f"{LATENCY}_count", 5.0, model_name="m"),
        ]
    )
    (engine,) = assembly.pods()["team", "chat-0"].engines
    assert engine.generation_tokens_total == 500.0
    assert engine.ttft_seconds is not None
    assert engine.ttft_seconds.cumulative_counts == (3.0, 5.0)
    assert (engine.ttft_seconds.sum, engine.ttft_seconds.count) == (4.0, 5.0)


def test_the_parts_of_a_counter_are_added() -> None:
    """Requests of two models of one engine are different requests."""
    assembly = Assembly(CATALOGUE, DCGM, CONFIG)
    assembly.add_numbers(_series(TOKENS, 500.0, model_name=model) for model in ("base", "lora"))
    (engine,) = assembly.pods()["team", "chat-0"].engines
    assert engine.generation_tokens_total == 1000.0
