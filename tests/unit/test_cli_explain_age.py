"""`explain` does not show a decision of before as one of now."""

import pytest
from tests.golden.decisions import SCALE_UP

from servingslo.cli.cluster.explain import _lines
from servingslo.explain.document import as_dict


@pytest.mark.parametrize(
    ("since", "told"),
    [
        pytest.param("2099-01-01T00:00:00Z", True, id="conditions-are-newer"),
        pytest.param("2001-01-01T00:00:00Z", False, id="decision-is-newer"),
    ],
)
def test_a_decision_older_than_its_conditions_is_said_to_be(since: str, told: bool) -> None:
    """A refused spec turns Ready False and leaves the last decision as it is."""
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "InvalidSpec",
        "message": "spec.objectives",
        "lastTransitionTime": since,
    }
    status = {"lastDecision": as_dict(SCALE_UP), "conditions": [condition]}
    text = "\n".join(_lines(status, "inference", "llama-chat"))
    said = f"is older than the conditions: Ready is False (InvalidSpec) since {since}"
    assert (said in text) is told
