"""Errors that name field, value and range, also where a worker process raised them."""

import copy
from concurrent.futures import ProcessPoolExecutor

import pytest

from servingslo.errors import InvalidInputError, InvalidSpecError, UnknownRuntimeError

PROBLEM = InvalidInputError("spec.replicas.max", 0, "1 to 100000")


@pytest.mark.parametrize(
    "error",
    [
        PROBLEM,
        UnknownRuntimeError("spec.runtime.profile", "vlm", "vllm or sglang"),
        InvalidSpecError((PROBLEM, InvalidInputError("spec.objectives", None, "1 to 16"))),
    ],
)
def test_an_error_survives_being_taken_apart(error):
    """Type, text and what it names; a pool of workers that cannot read one breaks instead."""
    same = copy.copy(error)  # by the protocol of pickle
    assert type(same) is type(error)
    assert str(same) == str(error)
    assert (same.field, same.value, same.allowed) == (error.field, error.value, error.allowed)


def test_a_long_value_leaves_room_for_what_is_allowed():
    """The first line of a JSON file may be the whole file; the attribute keeps the value."""
    line = "x" * 100_000
    error = InvalidInputError("trace.json: header", line, "arrival_seconds")
    assert len(str(error)) < 400
    assert str(error).startswith("trace.json: header: 'xxx")
    assert str(error).endswith("… is not allowed; allowed: arrival_seconds")
    assert copy.copy(error).value == line


def refused(value):
    """What a worker does with a bad value."""
    raise InvalidInputError("seed", value, "0 or more")


def test_the_error_of_a_worker_reaches_its_parent():
    """As it was raised, and not as a broken pool."""
    with ProcessPoolExecutor(1) as pool, pytest.raises(InvalidInputError, match="seed: -1"):
        pool.submit(refused, -1).result()


def test_a_truth_value_is_told_as_it_is_written():
    """JSON and YAML write true, Python True."""
    assert str(InvalidInputError("ready", value=True, allowed="x")).startswith("ready: true is not")
