"""First tokens of an engine: no part of the law or of observed latencies."""

from dataclasses import replace

import pytest
from tests.unit.estimation_fleet import page_of

from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.sample import HistogramSample, PodSample

FIRST, PER_SCRAPE = 5, 30


def _pod(name: str, slow: int, usual: int) -> PodSample:
    """A pod whose engine served so many requests with a slow first token, and so many others."""
    page = page_of(float(slow + usual), slow=float(slow))
    tokens = page.generation_tokens_total
    between = HistogramSample(
        upper_bounds=(1.0, float("inf")),
        cumulative_counts=(tokens, tokens),
        sum=0.02 * tokens,
        count=tokens,
    )
    engine = replace(page, inter_token_seconds=between)
    return PodSample(
        name=name, ready=True, age_seconds=400.0, ready_for_seconds=300.0, engines=(engine,)
    )


def _after(*looks: tuple[PodSample, ...]) -> Estimate:
    state, estimate = EstimatorState(), None
    for number, pods in enumerate(looks):
        state, estimate = update(state, FleetSample(time_seconds=15.0 * number, pods=pods))
    assert estimate is not None
    return estimate


@pytest.mark.parametrize(
    ("scrapes_without_tokens", "usual_later"),
    [
        pytest.param(1, 0, id="first-tokens"),
        pytest.param(4, 0, id="after-a-long-silence"),
        pytest.param(1, PER_SCRAPE, id="then-warm"),
    ],
)
def test_first_tokens_of_an_engine_are_not_what_is_observed(
    scrapes_without_tokens: int, usual_later: int
) -> None:
    """They wait for what is compiled and filled once; later ones of the same engine count."""
    looks = [(0, 0)] * scrapes_without_tokens + [(FIRST, 0)]
    looks += [(FIRST, usual_later)] if usual_later else []
    estimate = _after(*((_pod("new", slow, usual),) for slow, usual in looks))
    observed = estimate.observed.get("ttft")
    assert (observed.count if observed else 0) == usual_later


def test_an_engine_that_made_tokens_before_it_was_watched_is_warm() -> None:
    """An operator that starts finds engines that serve; what they do slowly is observed."""
    estimate = _after((_pod("old", 0, 100),), (_pod("old", FIRST, 100),))
    assert estimate.observed["ttft"].count == FIRST


def test_warm_engines_beside_a_cold_one_are_observed() -> None:
    """A step up does not blind the operator to the pods that carry the load."""
    before = (_pod("old", 0, 100), _pod("new", 0, 0))
    after = (_pod("old", 0, 100 + PER_SCRAPE), _pod("new", FIRST, 0))
    assert _after(before, after).observed["ttft"].count == PER_SCRAPE


def test_arrivals_of_a_cold_engine_count() -> None:
    """What is slow at first is demand all the same."""
    estimate = _after((_pod("new", 0, 0),), (_pod("new", FIRST, 0),))
    assert estimate.arrival_rate_per_second == pytest.approx(FIRST / 15.0)
