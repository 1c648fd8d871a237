"""What a decision orders of the actuators, and why one was not carried out."""

from dataclasses import dataclass

from servingslo.controller.actuators.protocol import Actuator, Assignment
from servingslo.controller.looking import PoolLook
from servingslo.controller.registry import Resource
from servingslo.explain.changes import Change
from servingslo.policy.decision import Decision
from servingslo.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A change that a decision orders, and the actuator that makes it."""

    actuator: Actuator
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a write failed. detail: in the API server's words."""

    reason: Reason
    detail: str


def assignment_of(resource: Resource, look: PoolLook, decision: Decision) -> Assignment:
    """What the actuators carry out of a decision."""
    return Assignment(
        ref=resource.record.ref,
        targets=look.targets,
        decision=decision,
        in_force=look.view.in_force,
        scaled=look.view.target,
    )
