"""Two operators of one release, and what the API server's audit log says that they wrote.

In it each process has its identity among its user agent.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from tests.integration.half_open import HalfOpenProxy
from tests.integration.operator_under_test import RELEASE_NAMESPACE, Operator

from servingslo_lab.rig.cluster import Rig

LEASE = "servingslo-operator"
SETTINGS = (f"--lease-namespace={RELEASE_NAMESPACE}", f"--lease-name={LEASE}")
# From the leader's death to the other's Lease.
TAKEOVER_SECONDS = 15.0
# Each operator has a log of its own.
_NUMBERS = itertools.count(1)
_IDENTITY = re.compile(r"\((\S+_[0-9a-f]{8})\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedWrite:
    """One request that changed something: when it was answered, by whom, and what it was.

    holder: of the release's Lease after it, where it is a write of that Lease; None of others.
    """

    seconds: float
    identity: str
    what: str
    holder: str | None = None


def candidate(rig: Rig, *settings: str, program: str = "servingslo.cli") -> Operator:
    """One more operator of the release with these further settings, not started."""
    name = f"operator-{next(_NUMBERS)}"
    return Operator(rig, *SETTINGS, *settings, name=name, program=program)


@dataclass
class Candidate:
    """One operator, and what it reaches the API server through."""

    operator: Operator
    proxy: HalfOpenProxy

    def alive(self) -> bool:
        """Whether its process runs."""
        return self.operator.process is not None and self.operator.process.running

    def stop(self) -> None:
        """In order."""
        self.proxy.mend()
        self.operator.stop()
        self.proxy.stop()


def started_behind_proxy(rig: Rig, operator: Operator) -> Candidate:
    """This operator, started, with a way of its own to the API server."""
    address = urlsplit(rig.api_url)
    proxy = HalfOpenProxy(address.hostname or "127.0.0.1", address.port or 443)
    operator.reach_through(proxy.port)
    operator.start()
    return Candidate(operator=operator, proxy=proxy)


def leads(operator: Operator) -> bool:
    """Whether it says so, by its gauge."""
    return "servingslo_leader 1.0" in operator.metrics()


def identity_of(operator: Operator) -> str:
    """As its log has it, of the process that runs now."""
    return identities_of(operator)[-1]


def identities_of(operator: Operator) -> list[str]:
    """Of each of its processes, in order."""
    lines = operator.log_lines("identity=")
    return [line.partition("identity=")[2].split()[0] for line in lines]


def writes(rig: Rig) -> list[AuditedWrite]:
    """What operators changed in the cluster, in order."""
    lines = rig.audit_log.read_text(encoding="utf-8").splitlines()
    return sorted(_writes(map(json.loads, lines)), key=lambda write: write.seconds)


def strays(seen: list[AuditedWrite], operators: Iterable[Operator]) -> list[AuditedWrite]:
    """Writes of processes of these operators that did not hold the release's Lease then.

    The audit log has those of operators of other tests as well, which led by other Leases.
    """
    ours = set().union(*map(identities_of, operators))
    holder, found = None, []
    for write in seen:
        if write.holder is not None:
            holder = write.holder or holder
        elif write.identity in ours and write.identity != holder:
            found.append(write)
    return found


def audited(
    entries: Iterable[dict[str, Any]], verbs: frozenset[str]
) -> Iterator[tuple[float, str, str, dict[str, Any]]]:
    """Successful requests of operators: when answered, by which process, of what, and the entry."""
    for entry in entries:
        identity = _IDENTITY.search(entry.get("userAgent", ""))
        if (
            identity is None
            or entry["stage"] != "ResponseComplete"
            or entry["responseStatus"]["code"] >= 300
            or entry["verb"] not in verbs
        ):
            continue
        reference = entry["objectRef"]
        what = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        seconds = datetime.fromisoformat(entry["stageTimestamp"]).timestamp()
        yield seconds, identity[1], what, entry


def _writes(entries: Iterable[dict[str, Any]]) -> Iterator[AuditedWrite]:
    verbs = frozenset({"create", "patch", "update", "delete"})
    for seconds, identity, what, entry in audited(entries, verbs):
        of_release = what == "leases" and entry["objectRef"]["namespace"] == RELEASE_NAMESPACE
        yield AuditedWrite(
            seconds=seconds,
            identity=identity,
            what=what,
            holder=entry["requestObject"]["spec"]["holderIdentity"] if of_release else None,
        )
