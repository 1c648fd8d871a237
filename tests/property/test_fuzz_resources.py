"""ServingSLOs, whatever is written into their spec, or into their status by whoever may.

1. Any spec is targets or a refusal with a reason that a status can hold; nothing is raised.
2. With the targets of any spec that is accepted the loop decides, inside of that spec's bounds, and
   what it decides can be told and stored.
3. Any memory in a status is read, and the loop decides with what is left of it.
"""

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.property.fuzzing import fuzzed, is_said, remembered, tell, unhurried
from tests.unit.policy_world import TARGETS, Run, World, steady

from servingslo.adapters.kubernetes.resources import resource_record
from servingslo.api.v1alpha1.status import MAX_MESSAGE_LENGTH
from servingslo.controller.registry import Registry
from servingslo.controller.reporting.status import conditions_field
from servingslo.explain.conditions.derived import not_ready
from servingslo.policy.inputs import Limits, Observation, Targets
from servingslo.policy.planner import plan
from servingslo.policy.replicas.state import PlannerState
from servingslo.policy.stored_state import learned, lost_parts, restore
from servingslo.reasons import Reason

pytestmark = unhurried
NOW = 1_700_000_000.0
TICK_SECONDS = 15.0
_CASES = yaml.safe_load((Path(__file__).parents[1] / "unit" / "api_cases.yaml").read_text())
_BASE = _CASES["base"]
_GOOD = [(path, value) for path, case in _CASES["fields"].items() for value in case.get("good", ())]
_BAD = [
    (path, value)
    for path, case in _CASES["fields"].items()
    for value in (*case.get("bad", ()), *case.get("mistyped", ()))
]
_PATHS = sorted(_CASES["fields"])
_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
        st.sampled_from(["1e400s", "9" * 400 + "s", "9" * 5000, "0s", "-1h", "99.99%", "16Gi",
                         "9" * 400 + "Gi", "Measured", "Auto", "\x00", "7d"]),
    ),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
_SPEC_CHANGES = st.lists(
    st.one_of(
        st.sampled_from(_GOOD),
        st.sampled_from(_GOOD),
        st.sampled_from(_GOOD),
        st.sampled_from(_BAD),
        st.tuples(st.sampled_from(_PATHS), _JSON),
        st.tuples(st.sampled_from(sorted(_BASE)), st.just(None)),
        st.tuples(st.text(max_size=8), _JSON),
    ),
    max_size=6,
)


def _with(document: Any, path: str, value: Any) -> None:
    """Set a value at a dotted path, where there is such a place; None removes it."""
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    for name in parents:
        if isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        elif isinstance(document, dict):
            document = document.get(name)
        else:
            return
    if isinstance(document, dict):
        if value is None:
            document.pop(last, None)
        else:
            document[last] = value


@cache
def _observations() -> tuple[Observation, ...]:
    """Three ticks of a fleet under load."""
    run = Run(World(rate=steady(3.0), replicas=2), TARGETS, Limits()).until(45.0)
    return tuple(run.observations)


def _decide(targets: Targets, state: PlannerState) -> None:
    last = None
    for number, observation in enumerate(_observations()):
        now = NOW + TICK_SECONDS * number
        at = replace(observation, time_seconds=now)
        decision, state = plan(at, targets, Limits(), state, now)
        low, high = targets.replicas.minimum, targets.replicas.maximum
        if decision.apply_replicas:
            assert low <= decision.replicas_after <= high
        tell(decision, last)
        remembered(state, now)
        last = decision


@fuzzed
@given(changes=_SPEC_CHANGES, whole=st.one_of(st.none(), st.none(), st.none(), _JSON))
def test_any_spec_is_targets_or_a_refusal(changes, whole) -> None:
    """1, 2: as the API server hands it on, checked by its schema or not."""
    spec = copy.deepcopy(_BASE) if whole is None else whole
    for path, value in changes:
        _with(spec, path, copy.deepcopy(value))
    metadata = {"namespace": "inference", "name": "llama", "uid": "u", "generation": 1}
    resource = Registry().upsert(resource_record({"metadata": metadata, "spec": spec}))
    if resource.targets is not None:
        _decide(resource.targets, PlannerState())
        return
    assert resource.invalid is not None
    assert is_said(resource.invalid, MAX_MESSAGE_LENGTH)
    told = not_ready(Reason.INVALID_SPEC, str(resource.invalid), generation=1, now_seconds=NOW)
    json.dumps(conditions_field(told), allow_nan=False)


@cache
def _memory() -> str:
    run = Run(World(rate=steady(3.0), replicas=2), TARGETS, Limits()).until(600.0)
    return json.dumps(learned(run.state, run.world.now))


def _places(document: Any, path: tuple = ()) -> list[tuple]:
    """Where a JSON document holds anything."""
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [path, *(place for key, value in inner for place in _places(value, (*path, key)))]


@cache
def _memory_places() -> tuple[tuple, ...]:
    return tuple(place for place in _places(json.loads(_memory())) if place)


@fuzzed
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), _JSON), min_size=1, max_size=4))
def test_any_memory_in_a_status_is_read(changes) -> None:
    """3: what is there is believed in part, or not at all."""
    stored = json.loads(_memory())
    for where, value in changes:
        *parents, last = _memory_places()[where % len(_memory_places())]
        inner = stored
        for key in parents:
            known = isinstance(inner, dict) and key in inner
            known = known or (isinstance(inner, list) and isinstance(key, int) and key < len(inner))
            inner = inner[key] if known else None
        if isinstance(inner, dict) or (isinstance(inner, list) and last in range(len(inner))):
            inner[last] = copy.deepcopy(value)
    state = restore(stored, NOW)
    assert all(isinstance(part, str) for part in lost_parts(stored, NOW))
    _decide(TARGETS, state)
