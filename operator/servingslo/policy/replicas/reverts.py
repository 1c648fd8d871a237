"""Clients that revert each of our changes, and how long to pause our writes then.

A GitOps controller that heals itself, a job that sets a count every minute, or an autoscaler would
write against the operator for ever. Each write creates pods that the next one deletes, and each
write of batch limits restarts every pod twice.
"""

from dataclasses import dataclass, replace

from servingslo.policy.decision_parts import StepValue

# One edit is a person's, two may be chance; the third of the same count is a program's.
REVERTS_BEFORE_PAUSE = 3
# The limit for a person's client at a person's pace: setting the same count so often by hand is
# deliberate.
CLIENT_REVERTS_BEFORE_PAUSE = 6
# A program reverts each of our writes within seconds, and the next look, one tick later, finds it.
# A person has to notice first.
PROMPT_SECONDS, PROMPT_TICKS = 20.0, 1.5
# A write that stays this long was not reverted. It is longer than the five minutes in which Argo CD
# and most jobs run again (argo-cd v3, timeout.reconciliation 180 s), and than Flux by default.
STANDING_SECONDS = 600.0
# The pause after the third revert, doubled with each further one. At first it is two ticks of a
# minute's job, at last one try in half an hour.
FIRST_PAUSE_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 1800.0
# Beginnings, in lower case, of the field managers of clients that people use. A program without a
# name of its own has the name of its client library: the Python and Java clients are
# 'OpenAPI-Generator'.
# Source: Kubernetes, apiserver's default manager, which is the user agent up to its first '/'.
_CLIENTS = (
    *("kubectl", "oc", "k9s", "lens", "openlens", "freelens", "headlamp", "octant", "mozilla"),
    *("dashboard", "kubernetes-dashboard", "openapi-generator", "kubernetes-client", "curl"),
    *("kubernetes-python-client", "kubernetes-javascript-client", "python-requests", "node-fetch"),
    *("okhttp", "go-http-client", "unknown"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverts:
    """How often one count was reverted in a row.

    replicas: the count. at_seconds: time of the last revert. by: the field manager that did it,
    None if the target does not report it. prompt: each revert was within seconds of our write.
    """

    replicas: int
    count: int
    at_seconds: float
    by: str | None = None
    prompt: bool = True

    @property
    def until_seconds(self) -> float:
        """End of the pause; the time of the last revert if reverts are still few."""
        by_hand = is_client(self.by) and not self.prompt
        more = self.count - (CLIENT_REVERTS_BEFORE_PAUSE if by_hand else REVERTS_BEFORE_PAUSE)
        return self.at_seconds + pause_seconds(more, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def pauses(self, now_seconds: float) -> bool:
        """Whether the count is left alone now; setting a clock back does not extend a pause."""
        return self.at_seconds <= now_seconds < self.until_seconds

    def inputs(self) -> dict[str, StepValue]:
        """The numbers and names that a decision reports."""
        return {
            "reverts": self.count,
            "put_back_to": self.replicas,
            "field_manager": self.by,
            "until_seconds": self.until_seconds,
            "detail": f"put back to {self.replicas} {self.count} times in a row by "
            f"{manager_in_words(self.by)}: the replica count is left to it for a while",
        }


def is_client(manager: str | None) -> bool:
    """Whether a field manager is a client that people use, or a library without a name."""
    name = (manager or "").lower()
    return any(
        name == client or name.startswith((f"{client}-", f"{client}.", f"{client} "))
        for client in _CLIENTS
    )


def manager_in_words(manager: str | None) -> str:
    """A field manager's name; if it is a client, the words say so."""
    if not manager:
        return "an unnamed field manager"
    return f"a client ({manager})" if is_client(manager) else manager


def count_revert(
    before: Reverts | None,
    *,
    replicas: int,
    by: str | None,
    now_seconds: float,
    prompt: bool = True,
) -> Reverts:
    """The memory after another client set a count that is not the one we had written.

    prompt: within seconds of our write, see `is_prompt`.
    """
    if before is None or before.replicas != replicas:
        return Reverts(replicas=replicas, count=1, at_seconds=now_seconds, by=by, prompt=prompt)
    return replace(
        before,
        count=before.count + 1,
        at_seconds=now_seconds,
        by=by,
        prompt=prompt and before.prompt,
    )


def is_prompt(written_seconds: float, now_seconds: float, tick_seconds: float) -> bool:
    """Whether a revert found now was within seconds of a write, as far as ticks can show."""
    return now_seconds - written_seconds <= max(PROMPT_SECONDS, PROMPT_TICKS * tick_seconds)


def expire_reverts(
    before: Reverts | None, *, since_seconds: float, now_seconds: float
) -> Reverts | None:
    """The memory while our count stays: none once it has stayed long enough.

    since_seconds: when it was written.
    """
    if before is None:
        return None
    needed = max(STANDING_SECONDS, before.until_seconds - before.at_seconds)
    stood = now_seconds - max(since_seconds, before.at_seconds)
    return None if stood >= needed else before


def pause_seconds(more: int, first_seconds: float, longest_seconds: float) -> float:
    """The pause after this many reverts beyond the first that pauses; 0 while they are fewer."""
    if more < 0:
        return 0.0
    return float(min(first_seconds * 2.0 ** min(more, 30), longest_seconds))
