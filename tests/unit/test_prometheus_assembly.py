"""Answers of Prometheus put together: what is told twice counts once."""

import time
from typing import Any

import pytest

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.runtimes.catalogue import CATALOGUE

CONFIG = PrometheusConfig(url="http://prometheus.test:9090")
DIGITS = "9" * 5000
TOKENS, LATENCY = "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds"


def _series(name: str, value: float, **labels: str) -> dict[str, Any]:
    metric = {"__name__": name, "namespace": "team", "pod": "chat-0", "engine": "0", **labels}
    return {"metric": metric, "value": [1.0, str(value)]}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_series_that_an_answer_repeats_counts_once(times: int) -> None:
    """A proxy in front of several servers may hand the same series on more than once."""
    assembly = Assembly(CATALOGUE, CONFIG)
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


@pytest.mark.parametrize("models", [("m",), ("m", "n")])
def test_an_edge_that_is_written_in_two_ways_is_one_bucket(models: tuple[str, ...]) -> None:
    """For some minutes a store tells what an upgraded Prometheus wrote before, and since."""
    assembly = Assembly(CATALOGUE, CONFIG)
    assembly.add_histograms(
        [
            _series(f"{LATENCY}_{suffix}", value, model_name=model, **edge)
            for model in models
            for suffix, value, edge in (
                ("bucket", 1.0, {"le": "0.5"}),
                ("bucket", 2.0, {"le": "1"}),
                ("bucket", 3.0, {"le": "1.0"}),
                ("bucket", 3.0, {"le": "2.5"}),
                ("bucket", 5.0, {"le": "+Inf"}),
                ("sum", 4.0, {}),
                ("count", 5.0, {}),
            )
        ]
    )
    (engine,) = assembly.pods()["team", "chat-0"].engines
    assert engine.ttft_seconds is not None
    assert engine.ttft_seconds.upper_bounds == (0.5, 1.0, 2.5, float("inf"))
    told = tuple(len(models) * count for count in (1.0, 3.0, 3.0, 5.0))
    assert engine.ttft_seconds.cumulative_counts == told


@pytest.mark.parametrize("edge", ["soon", "NaN", ""])
def test_a_bucket_whose_edge_is_no_number_spoils_its_own_histogram_alone(edge: str) -> None:
    """A page is a tenant's: the others of the cluster are read as ever."""
    assembly = Assembly(CATALOGUE, CONFIG)
    assembly.add_numbers([_series(TOKENS, 500.0), _series(TOKENS, 700.0, pod="chat-1")])
    good = [_series(f"{LATENCY}_bucket", 5.0, le="+Inf"), _series(f"{LATENCY}_sum", 4.0)]
    bad = [_series(f"{LATENCY}_bucket", 5.0, le=edge, pod="chat-1")]
    assembly.add_histograms([*good, *bad])
    pods = assembly.pods()
    assert pods["team", "chat-0"].engines[0].ttft_seconds is not None
    spoiled = pods["team", "chat-1"].engines[0]
    assert (spoiled.generation_tokens_total, spoiled.ttft_seconds) == (700.0, None)
    assert spoiled.impossible_metrics == (f"{LATENCY}=a bucket up to {edge!r}",)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        pytest.param(
            "vllm:cache_config_info", ("kv_cache_size_tokens", "block_size"), id="capacity"
        ),
        pytest.param("vllm:lora_requests_info", ("max_lora",), id="adapter-slots"),
    ],
)
def test_a_label_of_thousands_of_digits_is_no_number(name: str, labels: tuple[str, ...]) -> None:
    """Python itself refuses to read it, and the reading of all with it."""
    assembly = Assembly(CATALOGUE, CONFIG)
    info = _series(name, 1.0, **dict.fromkeys(labels, DIGITS))
    assembly.add_numbers([_series("vllm:num_requests_running", 1.0), info])
    (engine,) = assembly.pods()["team", "chat-0"].engines
    assert (engine.kv_capacity_tokens, engine.kv_block_tokens) == (None, None)
    assert engine.adapter_slots is None


def test_a_port_of_thousands_of_digits_is_none() -> None:
    """The `instance` of a scrape is a tenant's too, if that sets it in a ServiceMonitor."""
    assembly = Assembly(CATALOGUE, CONFIG)
    name = "vllm:num_requests_running"
    assembly.add_numbers(
        [_series(name, 1.0, instance=f"a:{DIGITS}"), _series(name, 1.0, instance="a:8000")]
    )
    assert assembly.pods()["team", "chat-0"].ports == {8000}


def test_scrapes_and_engines_by_the_thousand_take_their_number_of_steps() -> None:
    """A pod names both by labels of its own, and all pods are read in one thread."""
    name, number = "vllm:num_requests_running", 5000
    assembly = Assembly(CATALOGUE, CONFIG)
    of_pods = [_series(name, 1.0, engine="", prometheus_replica=f"{n}") for n in range(number)]
    of_engines = [_series(name, 2.0, engine=f"{n}", prometheus_replica="0") for n in range(number)]
    assembly.add_numbers([*of_pods, *of_engines])
    began = time.process_time()
    engines = assembly.pods()["team", "chat-0"].engines
    assert time.process_time() - began < 1.0
    assert len(engines) == number
