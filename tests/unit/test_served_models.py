"""Several models or adapters of one engine: read from its labels, and their loads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import build_queries
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.adapters.prometheus.reading.samples import MOST_NAMES
from servingslo.estimation.requests.served_models import (
    ServedModels,
    ServedModelsState,
    observe,
    served_models,
)
from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.runtimes.catalogue import CATALOGUE

PAGE = Path(__file__).parents[1] / "golden" / "data" / "vllm_0.32.0_adapters.txt"
CONFIG = PrometheusConfig(url="http://prometheus.test:9090")
ADAPTERS, TOKENS = "vllm:lora_requests_info", "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
TICK_SECONDS = 15.0


def _series(name: str, value: float, **labels: str) -> dict[str, Any]:
    metric = {"__name__": name, "namespace": "team", "pod": "chat-0", **labels}
    return {"metric": metric, "value": [1.0, str(value)]}


def _adapters(at: float, running: str, waiting: str = "", slots: str = "2") -> dict[str, Any]:
    return _series(
        ADAPTERS,
        at,
        max_lora=slots,
        running_lora_adapters=running,
        waiting_lora_adapters=waiting,
    )


def _engine(*series: dict[str, Any]) -> EngineSample:
    assembly = Assembly(CATALOGUE, CONFIG)
    assembly.add_numbers([_series(RUNNING, 3.0, engine="0", model_name="base"), *series])
    (engine,) = assembly.pods()["team", "chat-0"].engines
    return engine


def test_the_newest_set_of_adapters_is_read() -> None:
    """VLLM keeps a series of each former set, without a label of the engine."""
    engine = _engine(_adapters(200.0, "sql,chat", "sql,chat"), _adapters(100.0, "old"))
    assert engine.adapters == ("chat", "sql")
    assert engine.adapter_slots == 2
    assert engine.running == 3.0


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(_adapters(1.0, "a", slots="many"), id="no-number"),
        pytest.param(_adapters(1.0, "a", slots=""), id="no-slots"),
        pytest.param(_adapters(1.0, "a", slots="0"), id="none"),
        pytest.param(_adapters(1.0, "a", slots="-2"), id="negative"),
    ],
)
def test_adapters_without_a_number_of_slots_are_not_read(labels: dict[str, Any]) -> None:
    """A page is a tenant's; the rest of it is read."""
    engine = _engine(labels)
    assert (engine.adapters, engine.adapter_slots) == ((), None)
    assert engine.running == 3.0


def test_an_idle_engine_has_slots_and_no_adapters() -> None:
    """And names are bounded in number."""
    assert _engine(_adapters(1.0, "")).adapters == ()
    assert _engine(_adapters(1.0, "")).adapter_slots == 2
    many = ",".join(f"a{number}" for number in range(10 * MOST_NAMES))
    assert len(_engine(_adapters(1.0, many)).adapters) == MOST_NAMES


def test_the_page_of_an_engine_with_two_adapters_and_a_slot() -> None:
    """By contract: one of them waits, and its requests are deferred."""
    assembly = Assembly(CATALOGUE, CONFIG)
    families = text_string_to_metric_families(PAGE.read_text(encoding="utf-8"))
    assembly.add_numbers(
        _series(one.name, one.value, **one.labels) for family in families for one in family.samples
    )
    (engine,) = assembly.pods()["team", "chat-0"].engines
    assert (engine.adapters, engine.adapter_slots) == (("chat", "sql"), 1)
    engines = [(PodSample(name="chat-0", ready=True, engines=(engine,)), engine)]
    told = served_models(observe(ServedModelsState(), engines, 15.0), engines)
    assert told is not None
    assert (told.adapters_waiting, told.deferred_requests) == (1, 4.0)


def test_engines_that_share_a_pod_share_its_series() -> None:
    """The adapters of one of them say nothing about the others: none are known."""
    pod, engine = _fresh("pod-0", adapters=("a", "b", "c"))
    both = replace(pod, engines=(engine, replace(engine, engine="1", adapter_slots=None)))
    assert served_models(ServedModelsState(), [(both, engine)]) is None


def test_one_query_asks_each_scrape_for_its_newest_set() -> None:
    """However many sets an engine ever ran."""
    queries = build_queries(CATALOGUE, CONFIG)
    (asked,) = queries.adapters
    assert ADAPTERS in asked
    assert asked.startswith("topk by (namespace, pod")
    assert asked.count("__name__") == 1


def test_tokens_are_kept_by_model_if_there_are_several() -> None:
    """Their sum is the engine's counter as before."""
    one = _series(TOKENS, 500.0, engine="0", model_name="base")
    assert _engine(one).tokens_by_model == {}
    both = _engine(one, _series(TOKENS, 300.0, engine="0", model_name="other"))
    assert both.tokens_by_model == {"base": 500.0, "other": 300.0}
    assert both.generation_tokens_total == 800.0


def test_loads_of_adapters_follow_from_how_often_they_are_named() -> None:
    """Drawn for four engines at known loads; each within what half an hour of scrapes allows."""
    rng = np.random.default_rng(5)
    loads = {"big": 4.0, "middle": 1.5, "small": 0.4}
    state, told = ServedModelsState(), []
    for tick in range(1, 121):
        engines = []
        for number in range(4):
            names = tuple(n for n, load in loads.items() if rng.poisson(load / 4.0) > 0)
            engines.append(_fresh(f"pod-{number}", adapters=names))
        state = observe(state, engines, tick * TICK_SECONDS)
        told.append(served_models(state, engines))
    means = {
        name: np.mean([dict(_pairs(one))[name] for one in told[40:] if name in dict(_pairs(one))])
        for name in loads
    }
    assert means == pytest.approx(loads, rel=0.25)


def test_adapters_beyond_the_slots_wait() -> None:
    """Of each engine by itself; requests that wait for something else than room are told."""
    engines = [
        _fresh("pod-0", adapters=("a", "b", "c", "d"), deferred=5.0),
        _fresh("pod-1", adapters=("a",)),
    ]
    told = served_models(observe(ServedModelsState(), engines, 15.0), engines)
    assert told is not None
    assert (told.slots, told.adapters_in_flight, told.adapters_waiting) == (2, 4, 2)
    assert told.deferred_requests == 5.0


def test_shares_of_models_are_those_of_new_tokens() -> None:
    """Growth since the last tick; a counter that fell adds nothing."""
    state = ServedModelsState()
    for tick, counts in enumerate(({"a": 9e5, "b": 0.0}, {"a": 9e5 + 300.0, "b": 700.0})):
        engines = [_fresh("pod-0", slots=None, tokens=counts)]
        state = observe(state, engines, tick * TICK_SECONDS)
    told = served_models(state, engines)
    assert told is not None
    assert [(one.name, round(one.value, 3)) for one in told.token_shares] == [
        ("b", 0.7),
        ("a", 0.3),
    ]
    fallen = [_fresh("pod-0", slots=None, tokens={"a": 0.0, "b": 0.0})]
    after = served_models(observe(state, fallen, 30.0), fallen)
    assert after is not None
    assert [one.name for one in after.token_shares] == ["b", "a"]


def test_engines_of_one_model_say_nothing() -> None:
    """And leave the state as it was."""
    engines = [_fresh("pod-0", slots=None)]
    state = observe(ServedModelsState(), engines, 15.0)
    assert state == ServedModelsState()
    assert served_models(state, engines) is None


def test_an_adapter_that_is_gone_is_forgotten() -> None:
    """Within half an hour."""
    state = ServedModelsState()
    for tick in range(1, 150):
        engines = [_fresh("pod-0", adapters=("old",) if tick < 10 else ("new",))]
        state = observe(state, engines, tick * TICK_SECONDS)
    told = served_models(state, engines)
    assert told is not None
    assert [one.name for one in told.adapter_requests] == ["new"]


def _pairs(told: ServedModels | None) -> list[tuple[str, float]]:
    return [] if told is None else [(one.name, one.value) for one in told.adapter_requests]


def _fresh(
    name: str,
    *,
    adapters: tuple[str, ...] = (),
    slots: int | None = 2,
    deferred: float = 0.0,
    tokens: dict[str, float] | None = None,
) -> tuple[PodSample, EngineSample]:
    engine = EngineSample(
        engine="0",
        adapters=adapters,
        adapter_slots=slots,
        waiting_by_reason={"deferred": deferred},
        tokens_by_model=tokens or {},
    )
    return PodSample(name=name, ready=True, engines=(engine,)), engine
