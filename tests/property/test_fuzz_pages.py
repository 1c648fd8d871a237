"""Metric pages, whatever an engine or a tenant writes into them.

1. A reading succeeds, and the engine of another tenant is read as if the page were not there, in a
   time that grows with the page's length alone.
2. Every tick decides within the bounds, and what it decides can be told and stored.
3. A saved page is read, or refused with a reason.
"""

import asyncio
import math
import time
from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.prometheus import (
    CONFIG,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    NAMESPACE,
    FakePrometheus,
    Line,
    Page,
    page_of,
)
from tests.property.fuzzing import fuzzed, is_said, remembered, tell, unhurried
from tests.unit.policy_world import TARGETS, World, steady

from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.errors import InvalidInputError
from servingslo.estimation.sample import PodSample
from servingslo.policy.inputs import Limits, Observation
from servingslo.policy.planner import plan
from servingslo.policy.ports import ClusterMetrics
from servingslo.policy.replicas.state import PlannerState
from servingslo_lab.cli.fitting.pages import engines_of_page

pytestmark = unhurried
TICK_SECONDS = 15.0
SNAPSHOTS = 24
# Of a page of 15,000 lines; a tenant's that took the square of its lines would be minutes.
LONGEST_SECONDS = 5.0
_NAMES = sorted(
    {*GAUGES, *COUNTERS, "vllm:unknown", "sglang:num_running_reqs", "sglang:token_usage"}
    | {f"{name}{suffix}" for name in HISTOGRAMS for suffix in ("_bucket", "_sum", "_count")}
)
_VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e3, 1e12, 1e18, 1e300, 5e-324]),
    st.floats(),
)
_LABELS = st.dictionaries(
    st.sampled_from(
        ["le", "engine", "model_name", "finished_reason", "block_size", "kv_cache_size_tokens",
         "num_gpu_blocks", "job", "prometheus", "prometheus_replica"]
    ),
    st.one_of(
        st.sampled_from(["", "0", "1", "+Inf", "-Inf", "NaN", "1e400", "0x10", "16", "None"]),
        st.builds(lambda times: "9" * times, st.integers(1, 5000)),
        st.text(max_size=10),
    ),
    max_size=3,
)  # fmt: skip
# What is done to a page of an engine: at a place of it, one thing.
_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("value"), st.integers(0, 400), _VALUES),
        st.tuples(st.just("scale"), st.integers(0, 400), _VALUES),
        st.tuples(st.just("drop"), st.integers(0, 400), st.integers(1, 200)),
        st.tuples(st.just("labels"), st.integers(0, 400), _LABELS),
        st.tuples(st.just("more"), st.sampled_from(_NAMES), st.tuples(_LABELS, _VALUES)),
        st.tuples(st.just("all"), st.integers(0, 400), _VALUES),
        st.tuples(
            st.sampled_from(["le", "engine", "model_name", "job", "prometheus_replica"]),
            st.integers(0, 400),
            st.integers(1, 3000),
        ),
    ),
    max_size=5,
)
_TICKS = st.lists(
    st.tuples(st.integers(0, SNAPSHOTS - 1), st.integers(0, 2), _CHANGES), min_size=1, max_size=5
)


@cache
def _snapshots() -> tuple[tuple[Line, ...], ...]:
    """Pages of an engine under load, a scrape apart."""
    world = World(rate=steady(1.5), replicas=1)
    pages = []
    for number in range(SNAPSHOTS):
        world.advance(600.0 + TICK_SECONDS * number)
        (engine,) = world.service.engines.values()
        pages.append(tuple(page_of(engine)))
    return tuple(pages)


def _changed(page: tuple[Line, ...], changes: list) -> list[Line]:
    lines = list(page)
    for kind, where, what in changes:
        place = where % max(len(lines), 1) if isinstance(where, int) else 0
        match kind:
            case "value" if lines:
                lines[place] = (*lines[place][:2], what)
            case "scale" if lines:
                lines[place] = (*lines[place][:2], lines[place][2] * what)
            case "drop":
                del lines[place : place + what]
            case "labels" if lines:
                name, labels, value = lines[place]
                lines[place] = name, tuple({**dict(labels), **what}.items()), value
            case "more":
                lines.append((where, tuple(what[0].items()), what[1]))
            case "le" | "engine" | "model_name" | "job" | "prometheus_replica" if lines:
                # Ever other values of one label: a page has no greatest length.
                name, labels, value = lines[place]
                for number in range(what):
                    told = {**dict(labels), kind: f"{number}"}
                    lines.append((name, tuple(told.items()), value))
            case "all":
                lines = [(name, labels, value * what) for name, labels, value in lines]
    return lines


class _Scene:
    """A Prometheus with the pages that are given to it, and a process that reads them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.prometheus = FakePrometheus(lambda: self.now, lambda _seconds: None)
        self.reader = PrometheusReader(
            CONFIG, monotonic=lambda: self.now, client=self.prometheus, clock=self
        )
        self.state = PlannerState()
        self.last = None

    def now_seconds(self) -> float:
        return 1_700_000_000.0 + self.now

    def read(self, **pages: list[Line]) -> ClusterMetrics:
        """A reading with these pages scraped a moment before."""
        at = self.now - 1.0
        self.prometheus.pages = {pod: [Page(at, at, lines)] for pod, lines in pages.items()}
        return self.reader._read()

    def tick(self, metrics: ClusterMetrics) -> None:
        """Decide by a reading, for a workload of all pods."""
        recognized = metrics.recognize(NAMESPACE, None)(("good", "bad"))
        pods = tuple(
            PodSample(
                name=pod, ready=True, age_seconds=900.0, ready_for_seconds=800.0,
                engines=tuple(
                    e for e in metrics.pods[NAMESPACE, pod].engines
                    if e.runtime == recognized.runtime
                ),
            )
            for pod in ("good", "bad") if (NAMESPACE, pod) in metrics.pods
        )  # fmt: skip
        observation = Observation(
            time_seconds=self.now_seconds(), namespace=NAMESPACE, name="llama",
            desired_replicas=2, current_replicas=2, runtime=recognized.runtime, pods=pods,
            problems=() if metrics.problem is None else (metrics.problem,),
        )  # fmt: skip
        decision, self.state = plan(
            observation, TARGETS, Limits(), self.state, observation.time_seconds
        )
        after = decision.replicas_after
        assert after is None or 1 <= after <= TARGETS.replicas.maximum
        tell(decision, self.last)
        remembered(self.state, observation.time_seconds)
        self.last = decision


@fuzzed
@given(ticks=_TICKS)
def test_a_page_spoils_nothing_but_its_own_engine(ticks) -> None:
    """1, 2: several ticks, each with another page of the engine beside a good one."""
    scene = _Scene()
    try:
        for number, (snapshot, pause, changes) in enumerate(ticks):
            scene.now += TICK_SECONDS * (1 + pause)
            good = list(_snapshots()[min(number, SNAPSHOTS - 1)])
            alone = scene.read(good=good)
            bad = _changed(_snapshots()[snapshot], changes)
            began = time.process_time()
            metrics = scene.read(good=good, bad=bad)
            assert time.process_time() - began < LONGEST_SECONDS
            assert metrics.problem is None
            assert metrics.pods[NAMESPACE, "good"] == alone.pods[NAMESPACE, "good"]
            scene.tick(metrics)
    finally:
        scene.reader.close()


def _text(lines: list[Line]) -> str:
    def line(name: str, labels: tuple, value: float) -> str:
        inner = ",".join(f'{key}="{text}"' for key, text in labels)
        shown = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, repr(value))
        return f"{name}{{{inner}}} {shown}\n"

    return "".join(line(*one) for one in lines)


@fuzzed
@given(changes=_CHANGES, garbage=st.one_of(st.none(), st.text(max_size=200)), cut=st.integers(0))
def test_a_saved_page_is_read_or_refused(changes, garbage, cut) -> None:
    """3: cut, changed, or anything else."""
    page = _text(_changed(_snapshots()[0], changes))
    if garbage is not None:
        place = cut % (len(page) + 1)
        page = page[:place] + garbage
    try:
        engines = engines_of_page(page, "page.txt")
    except InvalidInputError as refusal:
        assert is_said(refusal)  # noqa: PT017 - any refusal, if it says why
        return
    assert engines


def test_readings_run_in_a_thread_of_their_own_also_here() -> None:
    """The reading that is fuzzed is the one that the operator makes."""
    scene = _Scene()
    scene.prometheus.pages = {"good": [Page(999.0, 999.0, list(_snapshots()[0]))]}
    read = asyncio.run(scene.reader.read())
    scene.reader.close()
    assert read.pods[NAMESPACE, "good"].engines[0].running is not None
