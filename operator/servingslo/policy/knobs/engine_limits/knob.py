"""Batch limits of engines, as a knob of the planner: flags of the pod template."""

from servingslo.policy.facts import Facts, LimitsChange
from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.decisions import BATCH_LIMITS
from servingslo.policy.knobs.engine_limits import stored
from servingslo.policy.knobs.engine_limits.memory import BatchingMemory
from servingslo.policy.knobs.engine_limits.tuning import tune_batching
from servingslo.policy.knobs.protocol import Look, Outcome, Turn


class EngineLimitsKnob:
    """Running sequences and tokens of one step, changed by a rollout."""

    name = BATCH_LIMITS
    stored_as = "batching"

    def observe(self, _look: Look, _standing: InForce | None, memory: object) -> Facts | None:
        """The change that a rollout may be carrying out: until it ends, both limits serve."""
        change = _known(memory).verifying
        if change is None or change.rollback:
            return None
        before, after = change.before, change.after
        return Facts(
            rollout=LimitsChange(
                before=(before.max_num_seqs, before.max_num_batched_tokens),
                after=(after.max_num_seqs, after.max_num_batched_tokens),
            )
        )

    def decide(self, turn: Turn, memory: object) -> Outcome:
        """Decide the limits in force and the better ones, and whether to change them now."""
        tuned = tune_batching(
            turn.context,
            turn.requirement,
            _known(memory),
            scaling=turn.scaling,
            acting=turn.acting,
        )
        return Outcome(tuned.decision, tuned.memory, tuned.steps)

    def reconcile(self, memory: object, written: bool) -> object:
        """The memory after the ordered limits were written or refused.

        A refused write is no change: the former memory is kept, and the limits may be tried again.
        """
        return _known(memory).settle(written=written)

    def dump(self, memory: object) -> object:
        """An open change, refused limits, and who puts ours back."""
        return stored.dump_batching(_known(memory))

    def load(self, stored_memory: object, now_seconds: float) -> object:
        """Restore the well-formed part of that."""
        found = stored.load_batching(stored_memory, now_seconds)
        return None if found == BatchingMemory() else found


def _known(memory: object) -> BatchingMemory:
    return memory if isinstance(memory, BatchingMemory) else BatchingMemory()
