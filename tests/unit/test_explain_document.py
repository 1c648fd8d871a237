"""The log line's rule, the document in status, metric samples, and how numbers are written."""

import json
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.decisions import BLIND, NOON_SECONDS, SCALE_UP

from servingslo.adapters.gauges import GAUGES, metric_samples
from servingslo.api.status_base import STATUS, told_gauges
from servingslo.estimation.pods.gpus import GpuUse
from servingslo.estimation.requests.served_models import ServedModels
from servingslo.explain.document import MAX_DOCUMENT_BYTES, as_dict
from servingslo.explain.format import number, percent, quoted, rounded
from servingslo.explain.log_line import REPEAT_SECONDS, log_line, material_change
from servingslo.explain.text import text
from servingslo.policy.decision import replace_knob
from servingslo.policy.decision_parts import DecisionStep, HandOver
from servingslo.policy.inputs import Actuation
from servingslo.policy.knobs.decisions import LimitDecision
from servingslo.reasons import Action, Constraint, Reason


@pytest.mark.parametrize(
    ("change", "worth_a_line"),
    [
        pytest.param({"metrics_age_seconds": 9.0}, False, id="only-numbers"),
        pytest.param({"action": Action.HOLD}, True, id="action"),
        pytest.param({"replicas_after": 6}, True, id="count"),
        pytest.param({"recommended_replicas": 6}, True, id="recommendation"),
        pytest.param({"binding": Constraint.TTFT}, True, id="binding"),
        pytest.param({"reason": Reason.TTFT_BOUND}, True, id="reason"),
        pytest.param({"time_seconds": NOON_SECONDS + REPEAT_SECONDS - 1}, False, id="too-soon"),
        pytest.param({"time_seconds": NOON_SECONDS + REPEAT_SECONDS}, True, id="ten-minutes"),
    ],
)
def test_a_line_is_written_on_change_and_every_ten_minutes(change, worth_a_line):
    """An unchanged decision is repeated rarely, a changed one at once."""
    assert material_change(SCALE_UP, replace(SCALE_UP, **change)) is worth_a_line


def test_an_unknown_count_is_said_so():
    """A target that cannot be read has no count, and no zero is shown in its place."""
    decision = replace(BLIND, replicas_before=None, replicas_after=None, recommended_replicas=None)
    assert " replicas=unknown " in log_line(decision)
    assert "hold, unknown replicas" in text(decision)
    names = {sample.name for sample in metric_samples(decision)}
    assert "servingslo_desired_replicas" not in names


@given(
    st.lists(
        st.tuples(
            st.text(max_size=300),
            st.dictionaries(
                st.text(min_size=1, max_size=20),
                st.one_of(st.floats(), st.text(max_size=900), st.none(), st.booleans()),
                max_size=8,
            ),
        ),
        max_size=40,
    ),
    st.text(max_size=5000),
)
def test_the_document_is_bounded_and_valid_json(steps, detail):
    """However much a decision says, the status holds at most 8 KiB of it, and its head always."""
    decision = replace(
        SCALE_UP,
        detail=detail,
        steps=tuple(
            DecisionStep(
                stage=stage,
                knob="replicas",
                before=1,
                after=2,
                reason=Reason.DEMAND_MET,
                inputs=inputs,
            )
            for stage, inputs in steps
        ),
    )
    document = as_dict(decision)
    encoded = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    assert len(encoded.encode(errors="surrogatepass")) <= MAX_DOCUMENT_BYTES
    assert document["action"] == "scale-up"
    assert document["replicasAfter"] == 5
    assert ("truncated" in document) or len(document.get("steps", [])) == len(steps)


def test_every_sample_belongs_to_a_declared_gauge():
    """Names and labels of samples are those that /metrics declares."""
    models = [one for part in STATUS.parts() for one in (part.model, part.of_class)]
    of_features = {name for model in models for name, _, _ in told_gauges(model)}
    declared = {one.name: set(one.labels) for one in GAUGES if one.name not in of_features}
    owned = replace(BLIND, reason=Reason.SCALER_CONFLICT, limited_by=Reason.SCALER_CONFLICT)
    bound = LimitDecision(
        reason=Reason.LIMIT_UNVERIFIED, kind="BackendTrafficPolicy", object_name="chat", after=37
    )
    bounded = replace_knob(SCALE_UP, "gateway-limits", bound)
    given = HandOver(actuation=Actuation.METRIC, reason=Reason.HANDED_OVER, replicas=5)
    handed = replace(SCALE_UP, handed_over=given)
    gpus = GpuUse(utilization_ratio=0.5, law_ratio=0.5, power_watts=300.0, joules_per_token=0.4)
    served = replace(SCALE_UP, gpus=gpus, models=ServedModels(slots=2))
    every = (SCALE_UP, owned, bounded, handed, served)
    samples = [s for d in every for s in metric_samples(d)]
    assert {sample.name for sample in samples} == set(declared)
    assert all(set(sample.labels) == declared[sample.name] for sample in samples)
    values = {s.name: s.value for s in metric_samples(SCALE_UP) if not s.labels}
    assert values["servingslo_desired_replicas"] == 5
    assert values["servingslo_utilization_ratio"] == 0.64


@pytest.mark.parametrize(
    ("value", "written"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("two words", '"two words"', id="space"),
        pytest.param("", '""', id="empty"),
        pytest.param('a"b', '"a\\"b"', id="quote"),
        pytest.param("a\nb", '"a\\nb"', id="line-break"),
        pytest.param("a=b", '"a=b"', id="equals"),
        pytest.param("größer", "größer", id="letters"),
        pytest.param("é\u2028b", '"\\u00e9\\u2028b"', id="line-separator"),
        pytest.param("a\x85b", '"a\\u0085b"', id="next-line"),
        pytest.param("a\x1b[2Jb", '"a\\u001b[2Jb"', id="escape"),
        pytest.param("a\x0bb", '"a\\u000bb"', id="vertical-tab"),
    ],
)
def test_values_are_quoted_when_they_would_not_stand_alone(value, written):
    """One line stays one line, and every pair can be told from the next."""
    assert quoted(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        pytest.param(41.234, "41.2", id="three-digits"),
        pytest.param(1234.5, "1230", id="no-exponent"),
        pytest.param(0.0, "0", id="zero"),
        pytest.param(0.01234, "0.0123", id="small"),
    ],
)
def test_numbers_have_three_significant_digits(value, written):
    """Finer than that nothing is known."""
    assert number(value) == written


@pytest.mark.parametrize(
    ("ratio", "written"),
    [
        pytest.param(0.9999, "99.9 %", id="never-rounded-up-to-all"),
        pytest.param(1.0, "100.0 %", id="all"),
        pytest.param(0.982, "98.2 %", id="one-decimal"),
    ],
)
def test_a_share_is_never_rounded_up_to_all(ratio, written):
    """100 % of requests within the threshold means all of them."""
    assert percent(ratio) == written


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_four_digits_and_is_idempotent(value):
    """A rounded number is within a relative 1e-3 of the number, and rounding again is nothing."""
    short = rounded(value)
    assert abs(short - value) <= 1e-3 * abs(value) + 5e-324
    assert rounded(short) == short
    assert math.isfinite(short)


def test_swings_of_arrivals_are_told_once_they_are_known():
    """The index of dispersion, and not a word before."""
    swinging = replace(SCALE_UP.demand, scrape_dispersion=1.9)
    told = text(replace(SCALE_UP, demand=swinging))
    assert "from scrape to scrape (1 is chance): 1.9" in told
    assert "1 is chance" not in text(SCALE_UP)


@dataclass(frozen=True)
class Toy:
    """What a feature reports."""

    met_at_seconds: float


def test_a_time_keeps_its_seconds():
    """Four digits of a Unix time would move it by days."""
    met_at = NOON_SECONDS + 12_345.0
    decision = replace(SCALE_UP, features={"toy": Toy(met_at_seconds=met_at)})
    assert as_dict(decision)["toy"]["metAtSeconds"] == met_at
