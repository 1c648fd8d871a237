"""Histogram laws.

1. Quantiles rise with the percentile and lie inside their bucket.
2. The share within a threshold is an interval, exact at an edge, and agrees with the quantile.
3. A length distribution made from a histogram has the histogram's own mean and total weight 1.
4. Windows add up: the delta of a span is the sum of the deltas of its parts.
5. No delta is negative, whatever the counters do.
6. Edges inside of empty buckets change no window, no pool of engines and no merge of windows.
7. Observations are never divided among edges that they were not counted by.
"""

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.requests.histograms import (
    HistogramDelta,
    length_distribution,
    merge,
    pooled_delta,
)
from servingslo.estimation.sample import HistogramSample

EDGES = (1.0, 2.0, 5.0, 10.0, 50.0, 200.0)
observations = st.lists(st.floats(0.5, 500.0), min_size=1, max_size=60)


def _histogram(values: list[float]) -> HistogramSample:
    return HistogramSample(
        upper_bounds=(*EDGES, float("inf")),
        cumulative_counts=tuple(
            float(sum(v <= edge for v in values)) for edge in (*EDGES, float("inf"))
        ),
        sum=sum(values),
        count=float(len(values)),
    )


def _delta_of(values: list[float]) -> HistogramDelta:
    delta = pooled_delta([(None, _histogram(values))])
    assert delta is not None
    return delta


@given(observations)
def test_quantiles_rise_and_stay_in_their_bucket(values: list[float]) -> None:
    """Invariant 1."""
    delta = _delta_of(values)
    found = [delta.quantile(p) for p in (0, 10, 50, 90, 99, 100)]
    assert all(a is not None and b is not None and a <= b for a, b in pairwise(found))
    for percentile in (10, 50, 99):
        bucket = delta.bucket_of(percentile)
        value = delta.quantile(percentile)
        assert bucket is not None
        assert value is not None
        assert bucket[0] <= value <= bucket[1]
        exact = sorted(values)[max(0, -(-len(values) * percentile // 100) - 1)]
        assert bucket[0] <= exact <= bucket[1]


@given(observations, st.floats(0.1, 600.0))
def test_share_within_is_an_interval_around_the_truth(
    values: list[float], threshold: float
) -> None:
    """Invariant 2."""
    share = _delta_of(values).share_within(threshold)
    truth = sum(v <= threshold for v in values) / len(values)
    assert share is not None
    assert share[0] - 1e-9 <= truth <= share[1] + 1e-9


@given(observations, st.sampled_from(EDGES))
def test_share_within_is_exact_at_an_edge(values: list[float], edge: float) -> None:
    """Invariant 2."""
    share = _delta_of(values).share_within(edge)
    truth = sum(v <= edge for v in values) / len(values)
    assert share is not None
    assert abs(share[0] - truth) < 1e-9
    assert abs(share[1] - truth) < 1e-9


@given(observations)
def test_length_distribution_keeps_the_mean(values: list[float]) -> None:
    """Invariant 3."""
    distribution = length_distribution(_delta_of(values))
    assert distribution is not None
    mean = sum(values) / len(values)
    assert abs(distribution.mean_tokens - mean) <= 1e-6 * mean
    assert abs(sum(distribution.weights) - 1.0) < 1e-9


@given(observations, observations, observations)
def test_windows_add_up(first: list[float], second: list[float], third: list[float]) -> None:
    """Invariant 4."""
    start, middle = _histogram(first), _histogram(first + second)
    end = _histogram(first + second + third)
    parts = [pooled_delta([(start, middle)]), pooled_delta([(middle, end)])]
    whole = pooled_delta([(start, end)])
    assert whole is not None
    total = merge([p for p in parts if p is not None])
    assert total is not None
    assert total.counts == whole.counts
    assert abs(total.sum - whole.sum) < 1e-6


@given(observations, observations)
def test_no_delta_is_negative_when_counters_fall(before: list[float], after: list[float]) -> None:
    """Invariant 5: a histogram that fell was restarted and counts from zero."""
    delta = pooled_delta([(_histogram(before), _histogram(after))])
    assert delta is not None
    assert min(delta.counts) >= 0
    assert delta.sum >= 0
    if len(after) < len(before):
        assert delta.count == len(after)


@given(
    st.lists(st.just(0.0) | st.floats(1e-3, 1e6), min_size=7, max_size=7),
    st.floats(0.0, 1e12),
)
def test_any_counts_and_sum_give_a_valid_distribution_or_none(
    counts: list[float], total: float
) -> None:
    """Invariant 3, for sums that the counts cannot have: the constructor checks order and sum."""
    delta = HistogramDelta(upper_bounds=EDGES, counts=tuple(counts), sum=total)
    distribution = length_distribution(delta)
    if distribution is not None:
        assert (
            abs(distribution.mean_tokens - total / sum(counts)) <= 1e-6 * distribution.mean_tokens
        )


def _sparse(histogram: HistogramSample) -> HistogramSample:
    """The histogram without edges between empty buckets, as a native one."""
    counts = (0.0, *histogram.cumulative_counts)
    inside = [after > before for before, after in pairwise(counts)]
    kept = [
        place
        for place, edge in enumerate(histogram.upper_bounds)
        if edge == float("inf") or inside[place] or inside[place + 1]
    ]
    return HistogramSample(
        upper_bounds=tuple(histogram.upper_bounds[place] for place in kept),
        cumulative_counts=tuple(histogram.cumulative_counts[place] for place in kept),
        sum=histogram.sum,
        count=histogram.count,
    )


few = st.lists(st.floats(0.5, 500.0), max_size=8)


@given(st.lists(st.tuples(few, few, few), min_size=1, max_size=4), st.floats(0.1, 600.0))
def test_edges_of_empty_buckets_change_nothing(
    engines: list[tuple[list[float], list[float], list[float]]], threshold: float
) -> None:
    """Invariant 6."""
    found: list[HistogramDelta | None] = []
    for form in (_histogram, lambda values: _sparse(_histogram(values))):
        ends = [
            [(form([*chain(*e[:place])]), form([*chain(*e[: place + 1])])) for e in engines]
            for place in (1, 2)
        ]
        windows = [pooled_delta(pairs) for pairs in ends]
        found += [*windows, merge([w for w in windows if w is not None], (0.5, 1.0))]
    for classic, native in zip(found[:3], found[3:], strict=True):
        assert classic is not None
        assert native is not None
        assert native.sum == classic.sum
        assert native.count == classic.count
        assert native.share_within(threshold) == classic.share_within(threshold)
        for percentile in (1, 50, 99, 100):
            assert native.quantile(percentile) == classic.quantile(percentile)
        assert length_distribution(native) == length_distribution(classic)


@given(observations, observations)
def test_observations_are_not_divided_among_other_edges(
    values: list[float], others: list[float]
) -> None:
    """Invariant 7."""
    own = _histogram(values)
    coarse = HistogramSample(
        upper_bounds=(100.0, float("inf")),
        cumulative_counts=(float(sum(v <= 100.0 for v in others)), float(len(others))),
        sum=sum(others),
        count=float(len(others)),
    )
    delta = pooled_delta([(None, own), (None, coarse)])
    assert delta is not None
    fits = not any(v <= 100.0 for v in others) and not any(50.0 < v <= 200.0 for v in values)
    whole = own.count + coarse.count if fits and not any(v > 100 for v in others) else own.count
    assert delta.count == whole
    alone = pooled_delta([(None, own)])
    window = pooled_delta([(None, coarse)])
    assert alone is not None
    assert window is not None
    merged = merge([window, alone])
    assert merged is not None
    assert merged.count == whole
