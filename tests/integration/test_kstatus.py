"""What Helm's own kstatus says of a ServingSLO in each state, so that waiting ends in time.

The conditions are those that the operator derives from a decision; Helm waits as a user's does.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from tests.golden.decisions import BLIND, NOON_SECONDS, SCALE_UP
from tests.integration.crd_server import MINIMAL, Server, resources

from servingslo.api.v1alpha1 import API_VERSION, KIND
from servingslo.controller.reporting.status import conditions_field
from servingslo.explain.conditions.condition import Condition
from servingslo.explain.conditions.derived import conditions as conditions_of
from servingslo.explain.conditions.derived import not_ready
from servingslo.explain.conditions.stalled import GRACE_SECONDS
from servingslo.policy.decision import Decision
from servingslo.policy.knobs.decisions import GATEWAY_LIMITS, LimitDecision
from servingslo.reasons import Reason
from servingslo_lab.rig.cluster import Rig

# Longer than Helm needs to see every resource, on a busy machine.
WAIT_SECONDS = 15
CURRENT, IN_PROGRESS, FAILED = "Current", "InProgress", "Failed"


def decided(decision: Decision, *, before: Sequence[Condition] = (), later: float = 0) -> Any:
    """The conditions after a decision."""
    now_seconds = NOON_SECONDS + later
    return conditions_of(decision, before, generation=1, now_seconds=now_seconds)


def refused(reason: Reason) -> Any:
    """The conditions without a decision."""
    return not_ready(reason, "why", generation=1, now_seconds=NOON_SECONDS)


def limited(reason: Reason) -> Any:
    """The conditions of a target that may not be used."""
    return decided(replace(SCALE_UP, limited_by=reason, detail="why"))


def states() -> dict[str, tuple[str, Any]]:
    """What kstatus is to say of each state, and its conditions; None before anything is read."""
    lacking = limited(Reason.TARGET_NOT_FOUND)
    not_found = replace(SCALE_UP, limited_by=Reason.TARGET_NOT_FOUND)
    lacks = LimitDecision(
        reason=Reason.NOT_PERMITTED, kind="BackendTrafficPolicy", object_name="chat"
    )
    bound = {GATEWAY_LIMITS: lacks}
    taken = limited(Reason.TARGET_CONFLICT)
    still = replace(SCALE_UP, limited_by=Reason.TARGET_CONFLICT, detail="why")
    return {
        "unread": (IN_PROGRESS, None),
        "changed": (IN_PROGRESS, decided(SCALE_UP)),
        "invalid": (FAILED, refused(Reason.INVALID_SPEC)),
        "scaler": (FAILED, limited(Reason.SCALER_CONFLICT)),
        "second": (IN_PROGRESS, taken),
        "second-later": (FAILED, decided(still, before=taken, later=GRACE_SECONDS)),
        "not-scalable": (FAILED, limited(Reason.TARGET_NOT_SCALABLE)),
        "denied": (FAILED, limited(Reason.PERMISSION_DENIED)),
        "not-permitted": (FAILED, decided(replace(SCALE_UP, knobs={**SCALE_UP.knobs, **bound}))),
        "lacking": (IN_PROGRESS, lacking),
        "gone": (FAILED, decided(not_found, before=lacking, later=GRACE_SECONDS)),
        "blind": (IN_PROGRESS, decided(BLIND)),
        "api-down": (IN_PROGRESS, limited(Reason.CLUSTER_UNAVAILABLE)),
        "fault": (IN_PROGRESS, refused(Reason.INTERNAL_ERROR)),
        "ready": (CURRENT, decided(SCALE_UP)),
    }


def chart(folder: Path, names: Sequence[str]) -> str:
    """A chart of these resources alone."""
    documents = [
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": MINIMAL}
        for name in names
    ]
    (folder / "templates").mkdir(parents=True)
    about = {"apiVersion": "v2", "name": "slos", "version": "1.0.0"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about))
    (folder / "templates" / "slos.yaml").write_text(yaml.safe_dump_all(documents))
    return str(folder)


def waited(rig: Rig, namespace: str, of: str) -> tuple[dict[str, str], float]:
    """What Helm says of each resource that is not current, and how long it waited, in seconds."""
    begin = time.monotonic()
    said = rig.helm(
        "upgrade", "slos", of, f"--namespace={namespace}", "--wait",
        f"--timeout={WAIT_SECONDS}s", check=False,
    ).stderr  # fmt: skip
    found = re.findall(rf"{KIND}/\S+/(\S+) not ready\. status: (\w+)", said)
    return dict(found), time.monotonic() - begin


def write(server: Server, namespace: str, name: str, conditions: Sequence[Condition]) -> None:
    """Write a status as the operator does."""
    status = {"observedGeneration": 1, "conditions": conditions_field(conditions)}
    answer = server.call(
        "PATCH",
        f"{resources(namespace)}/{name}/status",
        json={"status": status},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.ok, answer.text


def test_who_waits_fails_at_once_where_only_a_person_helps_and_waits_where_time_does(
    server: Server, rig: Rig, namespace: str, tmp_path: Path
) -> None:
    """Nobody waits for what no time mends, and nothing unread or not ready is taken for current."""
    every = states()
    of = chart(tmp_path / "every", list(every))
    rig.helm("install", "slos", of, f"--namespace={namespace}")
    for name, (_, conditions) in every.items():
        if conditions is not None:
            write(server, namespace, name, conditions)
    server.call(
        "PATCH",
        f"{resources(namespace)}/changed",
        json={"spec": {"mode": "Recommend"}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    said, seconds = waited(rig, namespace, of)
    assert {**dict.fromkeys(every, CURRENT), **said} == {n: kind for n, (kind, _) in every.items()}
    assert seconds >= WAIT_SECONDS
    settled = [name for name, (kind, _) in every.items() if kind != IN_PROGRESS]
    said, seconds = waited(rig, namespace, chart(tmp_path / "settled", settled))
    assert said == {name: FAILED for name in settled if every[name][0] == FAILED}
    assert seconds < WAIT_SECONDS
    rig.helm("uninstall", "slos", f"--namespace={namespace}")
