"""The laws that the product carries, beside the step times that they come from."""

import json

import numpy as np
import pytest
from tests.silicon.laws import as_row, by_size, errors, shares_of, summary
from tests.silicon.tables import tables

from servingslo.models.engine.law_fit import fit
from servingslo.models.known_engines import DATA, known_engine, roofline

CARRIED = json.loads(DATA.read_text(encoding="utf-8"))
ONE = {table.name: table for table in tables()}
# Of the worst tables, those of small models on many cards and of experts in four bits: a row that
# is further off is of kernels that the form does not fit.
LARGEST_MEAN, LARGEST_P95 = 0.08, 0.20
# A model left out alone may be further off than all of its kind together.
OF_ONE = 1.5


@pytest.mark.parametrize("table", [pytest.param(t, id=t.name) for t in tables()])
def test_every_carried_law_is_as_near_its_table_as_it_says(table):
    """Mean and p95 of the errors of its steps; and within what a first estimate may be off."""
    engine = known_engine(table.card.name, table.model.name, table.gpus)
    mean, high = summary([errors(engine.law, table)])
    assert engine.error_ratios == pytest.approx((mean, high), abs=2e-3)
    assert mean <= LARGEST_MEAN
    assert high <= LARGEST_P95


@pytest.mark.parametrize("name", ["h100/llama-3.1-8b/1", "h100/qwen3-30b-a3b/1"])
def test_a_carried_law_is_the_fit_to_its_table(name):
    """Made anew it is the same, digit by digit."""
    law = fit(ONE[name].steps).law
    assert CARRIED["laws"][name][:-2] == as_row(law)


def test_a_roofline_of_a_model_left_out_is_as_near_as_it_says():
    """Shares from the other models, and of this one its size alone."""
    few = [t for t in tables() if t.card.name in {"a100", "h100", "h200"}]
    left = [t for t in few if t.model.name == "llama-3.1-70b"]
    shares = shares_of([t for t in few if t not in left])
    found = [errors(roofline(by_size(t.model), t.card, t.gpus, shares), t) for t in left]
    mean, high = summary(found)
    stated = known_engine("h100", "acme-70b", 2).left_out["model"]
    assert mean <= OF_ONE * stated[0]
    assert high <= OF_ONE * stated[1]


def test_a_roofline_knows_the_card():
    """More bandwidth loads faster, more compute prefills faster; the other stays."""
    table = ONE["h100/llama-3.1-8b/1"]
    slower, faster = (known_engine(card, "acme-13b").law for card in ("h100", "h200"))
    assert faster.step_fixed_seconds < slower.step_fixed_seconds
    assert faster.prefill_per_token_seconds == pytest.approx(slower.prefill_per_token_seconds)
    assert np.abs(errors(known_engine("h100", "8b").law, table)).mean() < 0.2
