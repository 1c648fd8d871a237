"""Who puts back what we change, each time, and how long to leave it alone then.

A GitOps controller that heals itself, or a job that sets a count every minute, and an autoscaler
would write against each other for ever: each write makes pods that the next one deletes, and each
write of batch limits restarts every pod twice.
"""

from dataclasses import dataclass, replace

from servingslo.policy.decision_parts import StepValue

# One edit is a person's, two may be chance; the third of the same count is a program.
REVERTS_BEFORE_PAUSE = 3
# By a person's client, at a person's pace: nobody sets the same count so often by hand, and who
# does means it.
CLIENT_REVERTS_BEFORE_PAUSE = 6
# A program answers each write of ours within seconds; it is seen at the look after it, which comes
# a tick later. A person has to notice first.
PROMPT_SECONDS, PROMPT_TICKS = 20.0, 1.5
# A write that stands so long was not put back: longer than the five minutes in which Argo CD and
# most jobs come round (argo-cd v3, timeout.reconciliation 180 s), and than Flux by default.
STANDING_SECONDS = 600.0
# The pause after the third revert, doubled with each further one: two ticks of a minute's job at
# first, and at last one try in half an hour.
FIRST_PAUSE_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 1800.0
# How field managers of clients that people use begin, in lower case. Without a name of its own a
# program has that of its client library: the Python and Java clients are 'OpenAPI-Generator'.
# Source: Kubernetes, apiserver's default manager, which is the user agent up to its first '/'.
_CLIENTS = (
    *("kubectl", "oc", "k9s", "lens", "openlens", "freelens", "headlamp", "octant", "mozilla"),
    *("dashboard", "kubernetes-dashboard", "openapi-generator", "kubernetes-client", "curl"),
    *("kubernetes-python-client", "kubernetes-javascript-client", "python-requests", "node-fetch"),
    *("okhttp", "go-http-client", "unknown"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverts:
    """How often one count was put back in a row.

    replicas: the count. at_seconds: when it was put back last. by: the field manager that did, None
    where the target does not tell. prompt: each time it was within seconds of our write.
    """

    replicas: int
    count: int
    at_seconds: float
    by: str | None = None
    prompt: bool = True

    @property
    def until_seconds(self) -> float:
        """Until when the count is left alone; the time of the last revert while they are few."""
        by_hand = is_client(self.by) and not self.prompt
        more = self.count - (CLIENT_REVERTS_BEFORE_PAUSE if by_hand else REVERTS_BEFORE_PAUSE)
        return self.at_seconds + pause_seconds(more, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def pauses(self, now_seconds: float) -> bool:
        """Whether the count is left alone now; a clock that went back ends no pause late."""
        return self.at_seconds <= now_seconds < self.until_seconds

    def inputs(self) -> dict[str, StepValue]:
        """The numbers and names that a decision tells."""
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
    """A field manager's name; of a client, that it is one."""
    if not manager:
        return "an unnamed field manager"
    return f"a client ({manager})" if is_client(manager) else manager


def reverted(
    before: Reverts | None,
    *,
    replicas: int,
    by: str | None,
    now_seconds: float,
    prompt: bool = True,
) -> Reverts:
    """The memory after somebody set another count than the one that we had written.

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
    """Whether what is seen now was done within seconds of a write, as far as looks can tell."""
    return now_seconds - written_seconds <= max(PROMPT_SECONDS, PROMPT_TICKS * tick_seconds)


def standing(before: Reverts | None, *, since_seconds: float, now_seconds: float) -> Reverts | None:
    """The memory while a count of ours stands: none once it stood long enough.

    since_seconds: when it was written.
    """
    if before is None:
        return None
    needed = max(STANDING_SECONDS, before.until_seconds - before.at_seconds)
    stood = now_seconds - max(since_seconds, before.at_seconds)
    return None if stood >= needed else before


def pause_seconds(more: int, first_seconds: float, longest_seconds: float) -> float:
    """The pause after so many reverts more than the first that pauses; 0 while they are fewer."""
    if more < 0:
        return 0.0
    return float(min(first_seconds * 2.0 ** min(more, 30), longest_seconds))
