"""Processes of the rig are logged, stopped together, and never outlive their family."""

import signal

import pytest
import yaml

from servingslo_lab.errors import RigError
from servingslo_lab.rig.kubernetes import kwok
from servingslo_lab.rig.processes import ProcessFamily, uninterrupted


@pytest.fixture
def family(tmp_path):
    """A family of processes that is stopped after the test."""
    members = ProcessFamily(work_dir=tmp_path, remove_work_dir=False)
    yield members
    members.stop()


def test_process_that_ends_early_is_explained(family):
    """Waiting for a process that ended names it, its status and the end of its log."""
    process = family.add("broken", ["sh", "-c", "echo bad flag; exit 3"])
    process.start()
    with pytest.raises(RigError, match=r"broken: ended with status 3[\s\S]*bad flag"):
        process.wait_for(lambda: False, what="ready")


def test_process_that_ignores_the_request_to_end_is_killed(family):
    """SIGTERM comes first, SIGKILL when it did not help."""
    process = family.add("stubborn", ["sh", "-c", "trap '' TERM; echo up; sleep 60 & wait; wait"])
    process.start()
    process.wait_for(lambda: "up" in process.log_tail(), what="trap is set")
    process.stop(timeout_seconds=0.2)
    assert process.exit_status == -signal.SIGKILL


def test_family_stops_everything_and_may_be_stopped_twice(tmp_path):
    """After stop no member runs."""
    family = ProcessFamily(work_dir=tmp_path, remove_work_dir=False)
    for name in ("a", "b"):
        family.add(name, ["sleep", "60"]).start()
    members = family.members
    family.stop()
    family.stop()
    assert not any(process.running for process in members.values())
    assert members["a"].exit_status == -signal.SIGKILL


@pytest.mark.parametrize(
    "annotation",
    [
        kwok.READY_DELAY_ANNOTATION,
        kwok.READY_JITTER_ANNOTATION,
        kwok.STOP_DELAY_ANNOTATION,
        kwok.LIFETIME_ANNOTATION,
        kwok.FAILURE_ANNOTATION,
    ],
)
def test_stages_read_every_annotation(annotation):
    """Each annotation that tests may set is used by a stage, not only described in a comment."""
    stages = [stage["spec"] for stage in yaml.safe_load_all(kwok.STAGES.read_text())]
    assert any(annotation in str(stage) for stage in stages)


def test_an_interrupt_waits_until_a_new_process_is_known() -> None:
    """Ctrl-C in the middle of a start is held back, not lost."""
    finished = False

    def interrupted() -> None:
        nonlocal finished
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            finished = True

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
