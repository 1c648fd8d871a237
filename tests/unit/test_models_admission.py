"""The bound on what runs in one engine."""

import pytest
from scipy import stats

from servingslo.models.admission import RUNNING_PERCENTILE, running_bound
from servingslo.models.service_time import ServiceLaw, request_demand
from servingslo.models.workload import LengthDistribution, Workload

DEMAND = request_demand(
    Workload(
        arrival_rate_per_second=1.0,
        prompt=LengthDistribution.from_samples([1000.0]),
        output=LengthDistribution.from_samples([200.0]),
    ),
    ServiceLaw(
        step_fixed_seconds=0.015, step_per_sequence_seconds=1.5e-4, prefill_per_token_seconds=8e-5
    ),
)


@pytest.mark.parametrize("work_ratio", [0.2, 0.6, 0.9])
def test_the_bound_is_a_quantile_of_what_runs(work_ratio):
    """SciPy's negative binomial of mean λ·t_fixed/(1 − ρ) and 1/(1 − ρ) times that variance."""
    rate = work_ratio / DEMAND.marginal_seconds
    running = stats.nbinom(rate * DEMAND.fixed_seconds / work_ratio, 1.0 - work_ratio)
    assert running.mean() == pytest.approx(rate * DEMAND.fixed_seconds / (1.0 - work_ratio))
    assert running.var() == pytest.approx(running.mean() / (1.0 - work_ratio))
    quantile = running.ppf(RUNNING_PERCENTILE / 100.0)
    assert running_bound(DEMAND, rate, 10_000) == quantile
    assert running_bound(DEMAND, rate, 5) == min(quantile, 5)


@pytest.mark.parametrize(
    "rate_per_second",
    [
        pytest.param(1.0 / DEMAND.marginal_seconds, id="at saturation"),
        pytest.param(0.0, id="where nothing may be admitted"),
    ],
)
def test_all_slots_may_be_taken_where_no_law_says_fewer(rate_per_second):
    """The engine's own limit stands."""
    assert running_bound(DEMAND, rate_per_second, 64) == 64
