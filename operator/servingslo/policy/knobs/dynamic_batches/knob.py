"""Limits of dynamic batches, as a knob of the planner: set on servers while they run."""

from servingslo.policy.facts import Facts
from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.decisions import DYNAMIC_BATCHING
from servingslo.policy.knobs.dynamic_batches.memory import (
    LIMITS_NOT_SET,
    BatcherMemory,
    reloaded,
    unset_pods,
)
from servingslo.policy.knobs.dynamic_batches.servers import (
    batch_counts,
    batcher_in_force,
    batchers_of,
)
from servingslo.policy.knobs.dynamic_batches.trial import batcher_decision
from servingslo.policy.knobs.protocol import Look, Outcome, PlainKnob, Turn
from servingslo.reasons import Reason


class DynamicBatchesKnob(PlainKnob):
    """The largest batch, how long requests wait for one, and how many may wait."""

    name = DYNAMIC_BATCHING

    def observe(self, look: Look, standing: InForce | None, memory: object) -> Facts | None:
        """How batches form on the servers, their counters, and pods that lack our limits."""
        known = _known(memory)
        batchers = batchers_of(standing)
        unset = unset_pods(known, look.observation, batchers) if standing is not None else ()
        counted = {pod: one for pod, one in batchers.items() if pod not in unset}
        loading = reloaded(known, look.now_seconds)
        return Facts(
            batcher=batcher_in_force(counted or batchers),
            batches=batch_counts(standing),
            not_capacity=tuple((pod, LIMITS_NOT_SET) for pod in unset),
            no_step_down=Reason.ROLLOUT_IN_PROGRESS if loading else None,
        )

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide which limits all pods are to have, and on which pods they are set now."""
        known = _known(memory)
        return Outcome(*batcher_decision(turn.context, turn.requirement, known, acting=turn.acting))


def _known(memory: object) -> BatcherMemory | None:
    return memory if isinstance(memory, BatcherMemory) else None
