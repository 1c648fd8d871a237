"""How many examples a fuzz test tries: a hundred by default, 100,000 where it is asked for."""

import json
import os

import pytest
from hypothesis import HealthCheck, settings

from servingslo.api.v1alpha1.status import ServingSLOStatus
from servingslo.controller.reporting.status import conditions_field, status_fields
from servingslo.explain.conditions.derived import conditions as conditions_of
from servingslo.explain.document import as_dict, summary_line
from servingslo.explain.events import events as events_of
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.policy.decision import Decision
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import learned, restore

# `make fuzz` and `make acceptance` set it.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES") or 100)
# A test of so many takes as long as it takes; no single example should take a second.
unhurried = pytest.mark.timeout(max(300, EXAMPLES))
fuzzed = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# What a status keeps of a workload; the CRD's own bounds are checked with the status.
LEARNED_BYTES = 32_000
CHARACTERS = 4_000


def is_said(error: Exception, longest: int = CHARACTERS) -> bool:
    """Whether a refusal says something, and nothing without end."""
    return 0 < len(str(error)) <= longest


def tell(decision: Decision, previous: Decision | None) -> None:
    """Say a decision in all forms in which it is said, and check that each can be stored."""
    conditions = conditions_of(decision, generation=1, now_seconds=decision.time_seconds)
    fields = status_fields(decision, generation=1, last_batch_change_seconds=None)
    status = {name: value for name, value in fields.items() if value is not None}
    ServingSLOStatus.model_validate({**status, "conditions": conditions_field(conditions)})
    json.dumps(fields, allow_nan=False)
    json.dumps(as_dict(decision), allow_nan=False)
    lines = (log_line(decision), summary_line(decision))
    events = [event.message for event in events_of(decision, previous)]
    assert all(0 < len(said) <= CHARACTERS for said in (*lines, *events))
    assert text(decision)


def remembered(state: PlannerState, now_seconds: float) -> None:
    """What is learnt can be stored, and is read back."""
    stored = json.loads(json.dumps(learned(state, now_seconds), allow_nan=False))
    assert len(json.dumps(stored)) <= LEARNED_BYTES
    restore(stored, now_seconds)
