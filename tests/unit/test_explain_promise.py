"""What `servingslo explain` says of the attained share."""

from dataclasses import replace

from tests.golden.decisions import SCALE_UP

from servingslo.explain.text import text
from servingslo.policy.decision_parts import PromiseReport

PROMISE = PromiseReport(
    attained_ratio=0.993,
    target_ratio=0.99,
    period_seconds=86_400.0,
    observed_seconds=200_000.0,
)


def test_the_attained_share_is_beside_the_declared_one():
    """Share, target and time in one line; no line before anything was observed."""
    told = text(replace(SCALE_UP, promise=PROMISE))
    (line,) = (one for one in told.splitlines() if one.startswith("All objectives"))
    assert "99.3 % of requests attained, 99.0 % declared, over" in line
    assert "All objectives" not in text(SCALE_UP)
