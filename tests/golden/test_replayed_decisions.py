"""A change of form leaves every decision on eleven recordings as it was."""

import json
from collections import Counter

import pytest
from tests.golden.replay_cases import (
    CASES,
    COMMAND,
    FOLDER,
    decided,
    decisions_path,
    differences,
    read_lines,
    recording_path,
)

from servingslo.policy.knobs.catalogue import KNOBS
from servingslo.policy.knobs.decisions import BATCH_LIMITS

_SHOWN = 5
# In a copy without a feature that decides about batch limits.
UNDECIDED = () if BATCH_LIMITS in {knob.name for knob in KNOBS} else ("batching",)


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_as_stored(name: str) -> None:
    """Counts, reasons, needs, limits and four digits of every rate and prediction."""
    before, now = read_lines(decisions_path(name)), decided(read_lines(recording_path(name)))
    found = list(differences(before, now, UNDECIDED))
    if found:
        shown = "\n".join(found[:_SHOWN])
        pytest.fail(
            f"{len(found)} of {len(before)} decisions of {name} differ, the first:\n{shown}\n"
            f"If that is meant, write them anew: {COMMAND}",
            pytrace=False,
        )


def test_recordings_differ_in_what_happens() -> None:
    """Both directions, an outage, saturation and a stated law are among them."""
    counted: Counter[str] = Counter()
    for name in CASES:
        for line in read_lines(decisions_path(name)):
            one = json.loads(line)
            counted.update((one["action"], one["law"], one["metrics"]))
    for kind in (
        "scale-up", "scale-down", "hold", "fit", "saturation", "spec", "PrometheusUnavailable",
        "MetricsFresh",
    ):  # fmt: skip
        assert counted[kind] > 0, (kind, counted)


def test_recordings_are_those_of_the_table() -> None:
    """Eleven, each with its decisions, all together less than 2 MB."""
    assert len(CASES) == 11
    files = {path.name for path in FOLDER.iterdir()}
    assert files == {path(name).name for name in CASES for path in (recording_path, decisions_path)}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2e6


def test_a_difference_is_told_with_its_moment() -> None:
    """The field, what it was and what it is; equal decisions are silent."""
    one = {"second": 15, "wanted": 2, "rate": 4.0}
    before, now = [json.dumps(one)], [json.dumps({**one, "wanted": 3})]
    assert list(differences(before, before)) == []
    assert list(differences(before, now)) == ["at 15 s: wanted 2 → 3"]
    assert list(differences(before, [])) == ["1 → 0 decisions"]
