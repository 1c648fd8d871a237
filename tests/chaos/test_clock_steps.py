"""Prometheus's own clock is set while it scrapes: ages that are wrong are not used."""

import asyncio

import pytest
from tests.chaos.prometheus import CONFIG, SCRAPE_SECONDS, FakePrometheus
from tests.chaos.run import again, lived
from tests.chaos.story import FAULTS

from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.policy.ports import ClusterMetrics
from servingslo.reasons import Reason
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.replicas.engine import Engine, RequestTable

# Each had a write beyond what the load asks for: a restart told before the scrape that shows it, a
# process that begins after the clock was set back, scrapes that were refused as out of order, an
# engine that had begun again and counted nothing yet, the operator's own clock set ahead.
MENDED = (
    224,
    331,
    *(pytest.param(seed, marks=pytest.mark.acceptance) for seed in (102, 231, 610)),
)
STEP_SECONDS = 45.0


class Scene:
    """A Prometheus with one engine, and readers of it; time goes in scrapes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.prometheus = FakePrometheus(lambda: self.now, lambda _seconds: None)
        kind = engine_kind("l4-small")
        self.engine = Engine(
            law=kind.law, limits=kind.limits, requests=RequestTable(), max_model_len=4096
        )

    def reader(self) -> PrometheusReader:
        """A process that begins now."""
        return PrometheusReader(CONFIG, monotonic=lambda: self.now, client=self.prometheus)

    def scrape(self) -> None:
        """The next one."""
        self.now += SCRAPE_SECONDS
        self.prometheus.scrape(self.now, {"a": self.engine})

    def age_error(self, metrics: ClusterMetrics) -> float | None:
        """By how much the age that is told of the engine is wrong; None where none is told."""
        for pod in metrics.pods.values():
            age = pod.engines[0].counters_age_seconds
            if age is not None:
                pages = {page.truly_at for page in self.prometheus.pages["a"]}
                return min((age - (self.now - at) for at in pages), key=abs)
        return None


@pytest.mark.parametrize("step", [STEP_SECONDS, -STEP_SECONDS])
def test_no_age_is_told_by_a_clock_that_is_not_the_samples_own(step: float) -> None:
    """Neither when the clock is set, nor when it is set right again."""
    scene = Scene()
    reader = scene.reader()
    read = []
    for ahead in [*[0.0] * 4, *[step] * 12, *[0.0] * 12]:
        scene.prometheus.clock_ahead = ahead
        scene.scrape()
        metrics = asyncio.run(reader.read())
        if (error := scene.age_error(metrics)) is not None:
            assert error == pytest.approx(0.0, abs=0.1)
            newest = scene.prometheus.pages["a"][-1]
            read.append((scene.now, newest.truly_at))
        else:
            assert metrics.problem is not None
            assert metrics.problem.reason is Reason.METRICS_IMPLAUSIBLE
    reader.close()
    # Two steps cost some readings each, and no more.
    assert len(read) >= 28 - 2 * 7


def test_a_process_that_begins_after_the_clock_was_set_back_waits_for_samples_of_it() -> None:
    """Samples that lie in the future tell of the step."""
    scene = Scene()
    scene.scrape()
    scene.prometheus.clock_ahead = STEP_SECONDS
    for _ in range(3):
        scene.scrape()
    scene.prometheus.clock_ahead = 0.0
    reader = scene.reader()
    told = []
    for _ in range(6):
        scene.scrape()
        told.append(scene.age_error(asyncio.run(reader.read())))
    reader.close()
    assert told == [None, None, None, pytest.approx(0.0), pytest.approx(0.0), pytest.approx(0.0)]


@pytest.mark.parametrize("seed", MENDED)
def test_a_story_that_was_mended_stays_mended(seed: int) -> None:
    """Stories in which it once did."""
    _, result = lived(seed)
    assert not result.wrong, f"{again(seed, FAULTS, ())}: {result.wrong}"
