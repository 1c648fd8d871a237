"""The rig's own pages of engine and GPU, read by the operator's names, up to the estimate."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_engine_host import KIND, host_with, pod

from servingslo.adapters.prometheus.client import PrometheusConfig
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.sample import GPUSample, PodSample
from servingslo.reasons import Reason
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo_lab.cli.fitting.pages import engines_of_page
from servingslo_lab.rig.simulated.engine_host import EngineHost, Fault, FaultKind

TICK_SECONDS = 15.0
TICKS = 40
# Of the trace, some five requests a second.
SPEED = 0.02


def _gpus(page: str) -> tuple[GPUSample, ...]:
    assembly = Assembly(CATALOGUE, PrometheusConfig(url="http://prometheus.test"))
    assembly.add_gpus(
        {"metric": {"__name__": one.name, **one.labels}, "value": [0, repr(one.value)]}
        for family in text_string_to_metric_families(page)
        for one in family.samples
    )
    return assembly.pods()["llm", "chat-0"].gpus


async def _estimates(host: EngineHost, clock: Any) -> list[Estimate]:
    state, found = EstimatorState(), []
    for tick in range(1, TICKS + 1):
        for _ in range(int(TICK_SECONDS)):
            clock.now += 1.0
            host.gpu_page()
        page = await host.page("llm/chat-0")
        assert page is not None
        sample = PodSample(
            name="chat-0",
            template_hash="v1",
            image="engine:1",
            gpu_product=KIND.gpu_product,
            ready=True,
            ready_for_seconds=3600.0,
            engines=engines_of_page(page, "page"),
            gpus=_gpus(host.gpu_page()),
        )
        fleet = FleetSample(time_seconds=tick * TICK_SECONDS, pods=(sample,), service_law=KIND.law)
        state, estimate = update(state, fleet)
        found.append(estimate)
    return found


@pytest.mark.parametrize("stuck", [pytest.param(None, id="true"), pytest.param(0.97, id="stuck")])
async def test_a_gpu_page_refutes_the_law_where_it_lies_and_not_else(stuck: float | None) -> None:
    """A small card is mostly idle; a page that says 97 % is refuted after five minutes."""
    host, clock = host_with(pod(), speed=SPEED)
    if stuck is not None:
        fault = Fault(namespace="llm", pod="chat-0", kind=FaultKind.GPU, value=stuck)
        host.set_fault(fault)
    found = await _estimates(host, clock)
    gpus = found[-1].gpus
    assert gpus is not None
    assert gpus.missing == ""
    assert gpus.joules_per_token is not None
    assert gpus.law_ratio is not None
    assert gpus.law_ratio < 0.5
    refuted = [one.law.reason is Reason.GPUS_DISAGREE for one in found]
    assert any(refuted) is (stuck is not None)
    assert not any(refuted[:19])
    if stuck is not None:
        assert gpus.utilization_ratio == pytest.approx(stuck)
        assert found[-1].law.trusted is False
