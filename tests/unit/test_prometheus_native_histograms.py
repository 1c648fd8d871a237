"""Native histograms become cumulative counts at edges, and nothing is made up between them."""

import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.managed_store import ManagedStore, Series

from servingslo.adapters.prometheus.client import Answer
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import (
    GROUP_LABEL,
    LONGEST_QUERY_CHARACTERS,
    build_queries,
    native_queries,
)
from servingslo.adapters.prometheus.reading.assembly import Assembly
from servingslo.adapters.prometheus.reading.native import NativeEdges, native_histogram
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.runtimes.catalogue import CATALOGUE

NOW = 1_000_000.0
CONFIG = PrometheusConfig(url="http://prometheus.test")
TTFT = "vllm:time_to_first_token_seconds"
EDGES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
TWO_EDGES = (0.3, 4.0)
values = st.lists(st.floats(0.01, 20.0), max_size=12)


def converted(observed, edges=EDGES) -> dict:
    """A converted classic histogram (NHCB) of these values, as Prometheus answers."""
    bounds = (-math.inf, *edges, math.inf)
    counts = [0] * (len(edges) + 1)
    for value in observed:
        counts[bisect_left(edges, value)] += 1
    buckets = [
        [3 if place == 0 else 0, f"{bounds[place]:g}".replace("inf", "Inf"),
         f"{bounds[place + 1]:g}".replace("inf", "+Inf"), str(count)]
        for place, count in enumerate(counts) if count
    ]  # fmt: skip
    held = {"buckets": buckets} if buckets else {}
    return {"count": str(len(observed)), "sum": repr(math.fsum(observed)), **held}


def series(pod: str, histogram: dict, name: str = TTFT, **labels: str) -> dict:
    """A series of an answer."""
    metric = {"__name__": name, "namespace": "team", "pod": pod, "engine": "0", **labels}
    return {"metric": metric, "histogram": [NOW, histogram]}


def assembled(found, ages=("native",), known: NativeEdges | None = None, numbers=()):
    """Engines of pods by name from these series, all with these ages."""
    assembly = Assembly(CATALOGUE, CONFIG)
    pods = {one["metric"]["pod"]: one["metric"]["namespace"] for one in found}
    for group in ages:
        assembly.add_ages(
            {"metric": {"namespace": namespace, "pod": pod, "engine": "0",
                        GROUP_LABEL: f"{group}/engine"}, "value": [NOW, "4"]}
            for pod, namespace in pods.items()
        )  # fmt: skip
    assembly.add_histograms(numbers)
    assembly.add_native(found, known or NativeEdges())
    return {pod: metrics.engines[0] for (_, pod), metrics in assembly.pods().items()}


@given(st.lists(values, min_size=1, max_size=4))
def test_every_engine_has_the_counts_of_its_classic_histogram(engines) -> None:
    """At every edge that any engine's observations show."""
    found = assembled([series(f"p{n}", converted(own)) for n, own in enumerate(engines)])
    shapes = {engine.ttft_seconds.upper_bounds for engine in found.values()}
    assert len(shapes) == 1
    for number, own in enumerate(engines):
        ttft = found[f"p{number}"].ttft_seconds
        assert (ttft.count, ttft.sum) == (len(own), math.fsum(own))
        assert set(ttft.upper_bounds) <= {*EDGES, math.inf}
        exact = tuple(float(sum(v <= edge for v in own)) for edge in ttft.upper_bounds)
        assert ttft.cumulative_counts == exact


@given(values, values)
def test_an_edge_inside_of_a_bucket_has_no_count(own, others) -> None:
    """Engines with other edges: each count that is there is one of the observations."""
    found = assembled([series("a", converted(own)), series("b", converted(others, TWO_EDGES))])
    for observed, edges, pod in ((own, EDGES, "a"), (others, TWO_EDGES, "b")):
        ttft = found[pod].ttft_seconds
        # A value is known to within its bucket; all counts hold for its upper edge.
        known = [min((e for e in edges if e >= v), default=math.inf) for v in observed]
        for edge, count in zip(ttft.upper_bounds, ttft.cumulative_counts, strict=True):
            assert count == sum(v <= edge for v in known)
        assert ttft.cumulative_counts[-1] == ttft.count


@pytest.mark.parametrize(
    ("buckets", "count", "expected"),
    [
        pytest.param([], "0", {math.inf: 0.0}, id="empty"),
        pytest.param(
            [[3, "-0.001", "0.001", "2"], [0, "1", "2", "3"]], "5",
            {1.0: 2.0, 2.0: 5.0, math.inf: 5.0}, id="zeros",
        ),
        pytest.param(
            [[0, "0.9170040432046712", "1", "3"], [0, "1", "1.0905077326652577", "2"],
             [0, "1.0905077326652577", "1.189207115002721", "1"]], "6",
            {0.8408964152537144: 0.0, 1.0: 3.0, 1.189207115002721: 6.0, math.inf: 6.0},
            id="finer-ones-are-joined",
        ),
        pytest.param(
            [[0, "1", "2", "1"], [0, "4", "8", "2"]], "3",
            {1.0: 0.0, 2.0: 1.0, 4.0: 1.0, 8.0: 3.0, math.inf: 3.0}, id="coarser-ones-are-kept",
        ),
        pytest.param(
            [[0, "10", "11", "1"]], "1", {10.0: 0.0, 11.0: 1.0, math.inf: 1.0},
            id="close-edges-of-an-engine-are-kept",
        ),
    ],
)  # fmt: skip
def test_each_form_of_a_native_histogram(buckets, count, expected) -> None:
    """Exponential ones too; at most four edges in each power of two."""
    held = {"count": count, "sum": "4", "buckets": buckets}
    ttft = assembled([series("a", held)])["a"].ttft_seconds
    assert dict(zip(ttft.upper_bounds, ttft.cumulative_counts, strict=True)) == expected


@given(st.integers(3, 8), st.lists(st.integers(-40, 40), min_size=1, max_size=20, unique=True))
def test_joined_buckets_lose_no_observation(schema, places) -> None:
    """Each is where it was, in a bucket that holds its own."""
    buckets = [
        [0, repr(2.0 ** ((p - 1) / 2**schema)), repr(2.0 ** (p / 2**schema)), "1"]
        for p in sorted(places)
    ]
    found = native_histogram({"count": str(len(places)), "sum": "1", "buckets": buckets})
    assert len({right for _, right, _ in found.buckets}) <= 4 * (80 / 2**schema + 2)
    for (left, right, _), (_, lower, upper, _) in zip(found.buckets, buckets, strict=True):
        assert left <= float(lower) * (1 + 1e-12)
        assert right >= float(upper) * (1 - 1e-12)
        assert right / left == pytest.approx(2**0.25)


def test_what_no_engine_can_have_is_reported() -> None:
    """Negative times, and sums that are no numbers."""
    negative = {"count": "1", "sum": "-1", "buckets": [[1, "-2", "-1", "1"]]}
    engine = assembled([series("a", negative)])["a"]
    assert engine.ttft_seconds is None
    assert engine.impossible_metrics == (f"{TTFT}=a bucket up to 'below zero'",)
    engine = assembled([series("a", {**converted([1.0]), "sum": "NaN"})])["a"]
    assert engine.ttft_seconds is None
    assert engine.nan_metrics == (TTFT,)


def test_models_are_added_and_copies_are_not() -> None:
    """As of a classic histogram: the larger one of two under a label that is not listed."""
    found = assembled([
        series("a", converted([0.2]), model_name="m", replica="0"),
        series("a", converted([0.2, 0.7]), model_name="m", replica="1"),
        series("a", converted([3.0]), model_name="n"),
    ])  # fmt: skip
    ttft = found["a"].ttft_seconds
    assert (ttft.count, ttft.sum) == (3.0, 3.9)
    assert found["a"].histograms_age_seconds == 4.0


def test_a_classic_histogram_of_the_same_name_counts() -> None:
    """And its age."""
    classic = [
        {"metric": {**series("a", {})["metric"], "__name__": TTFT + suffix, **more},
         "value": [NOW, "7"]}
        for suffix, more in (("_bucket", {"le": "+Inf"}), ("_sum", {}), ("_count", {}))
    ]  # fmt: skip
    engine = assembled([series("a", converted([1.0]))], ("native", "histogram"), numbers=classic)
    assert engine["a"].ttft_seconds.count == 7.0


def test_edges_of_a_tenant_stay_in_its_namespace_and_are_forgotten() -> None:
    """Else one page could make the histograms of everybody as long as it likes."""
    known = NativeEdges()
    many = [number / 1000 for number in range(1, 500)]
    strange = series("bad", converted(many, many))
    other = series("good", converted([0.3]))
    other["metric"]["namespace"] = "other"
    found = assembled([strange, other], known=known)
    assert found["good"].ttft_seconds.upper_bounds == (0.25, 0.5, math.inf)
    found = assembled([series("bad", converted(many, many)), series("b", converted([0.3]))])
    assert found["b"].ttft_seconds.upper_bounds == (0.25, 0.5, math.inf)
    known = NativeEdges()
    known.begin()
    assembled([series("a", converted([3.0]))], known=known)
    assert len(assembled([series("a", converted([0.3]))], known=known)["a"].ttft_seconds
               .upper_bounds) == 5  # fmt: skip
    for _ in range(40):
        known.begin()
    assert len(assembled([series("a", converted([0.3]))], known=known)["a"].ttft_seconds
               .upper_bounds) == 3  # fmt: skip


class Store(ManagedStore):
    """One that holds native histograms; the engines' ages are those of their names."""

    native = ()

    def query(self, promql, *, deadline, at_seconds=None):
        """The answer."""
        if promql in native_queries(CATALOGUE, CONFIG):
            self.asked.append(promql)
            return Answer(result=[], histograms=self.native)
        return super().query(promql, deadline=deadline, at_seconds=at_seconds)


@pytest.mark.parametrize("suffix", ["", "_count"])
def test_native_histograms_are_asked_for_where_classic_ones_are_missing(suffix) -> None:
    """Whether there are any, their age says, which is part of a query that is asked anyway."""
    labels = {"namespace": "team", "pod": "a", "engine": "0"}
    names = ("vllm:num_requests_running", TTFT + suffix)
    store = Store(lambda: NOW, [Series({"__name__": n, **labels}, 3.0, NOW - 4) for n in names])
    store.native = (series("a", converted([0.2, 0.3])),)
    reader = PrometheusReader(CONFIG, client=store, monotonic=lambda: 50.0)
    metrics = reader._read()
    reader.close()
    assert metrics.problem is None
    (engine,) = metrics.pods["team", "a"].engines
    asked = [one for one in store.asked if one in native_queries(CATALOGUE, CONFIG)]
    if suffix:
        assert (engine.ttft_seconds, asked) == (None, [])
    else:
        assert engine.ttft_seconds.count == 2.0
        assert engine.histograms_age_seconds == pytest.approx(4.0, abs=1.0)
        assert len(asked) == 1


def test_one_query_asks_for_all_native_histograms() -> None:
    """In many namespaces there are several, each no longer than an address may be."""
    assert len(native_queries(CATALOGUE, CONFIG)) == 1
    assert len(build_queries(CATALOGUE, CONFIG).ages) == 1
    many = PrometheusConfig(url=CONFIG.url, namespaces=tuple(f"team-{n:03}" for n in range(50)))
    longest = max(map(len, native_queries(CATALOGUE, many, 'pod=~".*[^0]"')))
    assert longest <= LONGEST_QUERY_CHARACTERS
