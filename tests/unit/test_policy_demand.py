"""The quantile of demand that is planned for."""

import pytest

from servingslo.estimation.forecast import Forecast
from servingslo.policy.demand import (
    CALM_PROBABILITY,
    PLAIN_LEAD_SECONDS,
    SURGE_PROBABILITY,
    planned_probability,
)


def _calm(lead_seconds, margin_score=0.0):
    return planned_probability(Forecast(), lead_seconds, margin_score)


def test_the_calm_quantile_grows_with_the_lead_within_bounds():
    """What is missing is missing for a lead, so more is planned for a longer one."""
    assert _calm(PLAIN_LEAD_SECONDS) == pytest.approx(CALM_PROBABILITY)
    leads = (1.0, 60.0, 120.0, 270.0, 480.0, 7200.0)
    found = [_calm(lead) for lead in leads]
    assert found == sorted(found)
    assert 0.45 < found[0] < found[1] < CALM_PROBABILITY
    assert 0.7 < found[3] < found[4] == found[5] < SURGE_PROBABILITY


def test_the_margin_moves_the_calm_quantile():
    """Budget that is left plans for less, budget that burns for more."""
    assert _calm(120.0, -0.25) < _calm(120.0) < _calm(120.0, 0.5)
