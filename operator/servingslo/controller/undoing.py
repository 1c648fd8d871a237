"""Puts back values written for resources that are gone or no longer ask for them."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from servingslo.adapters.kubernetes.api.fence import under_lease
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.controller.actuators.endings import PartlyUndoneError
from servingslo.controller.adapters import Adapters
from servingslo.controller.registry import Registry
from servingslo.controller.reporting.reporter import Reporter
from servingslo.errors import ClusterError
from servingslo.explain.changes import Change
from servingslo.policy.inputs import Limits, Targets
from servingslo.policy.replicas.ownership import acting_limit

_LOG = logging.getLogger(__name__)
# A change that is made while the operator is away leaves no event. So all objects are checked at
# its start and this often.
SWEEP_SECONDS = 600.0
# Doubled at each retry in a row.
RETRY_SECONDS = 15.0


@dataclass(slots=True)
class Undoing:
    """Asks every actuator from time to time to put back values that are no longer wanted."""

    adapters: Adapters
    registry: Registry
    limits: Limits
    reporter: Reporter
    _due_at: float = float("-inf")
    _failed: set[Change] = field(default_factory=set)
    _gone_at: dict[str, float] = field(default_factory=dict)
    _retry_seconds: float = RETRY_SECONDS

    def ask(self) -> None:
        """Check at the next occasion: a resource is gone, or its spec changed."""
        self._due_at = float("-inf")
        self._retry_seconds = RETRY_SECONDS

    async def when_due(self, elapsed_seconds: float, leases: Iterable[int] = (0,)) -> None:
        """Check all objects if a check is due. Call only with a complete list of resources.

        leases: that this process holds. A value that could not be put back is retried soon, and
        reported once.
        """
        self._forget_gone(elapsed_seconds)
        if elapsed_seconds < self._due_at:
            return
        failed: set[Change] = set()
        all_answered = True
        for lease in leases:
            with under_lease(lease):
                all_answered = await self._check(lease, failed) and all_answered
        self._failed = failed
        if all_answered and not failed:
            self._due_at, self._retry_seconds = elapsed_seconds + SWEEP_SECONDS, RETRY_SECONDS
        else:
            self._due_at = elapsed_seconds + self._retry_seconds
            self._retry_seconds = min(2.0 * self._retry_seconds, SWEEP_SECONDS)

    async def _check(self, lease: int, failed: set[Change]) -> bool:
        """Check what was written under a Lease; return whether all could be checked."""
        all_answered = True
        for actuator in self.adapters.actuators:
            part = ("putting back", actuator.knob)
            now_seconds = self.adapters.clock.now_seconds()
            try:
                try:
                    made = await actuator.undo(partial(self.wanted, lease=lease))
                except PartlyUndoneError as error:
                    await self._tell(error.made, failed)
                    raise
                await self._tell(made, failed)
            except ClusterError as error:
                self.adapters.exporter.count_failure("kubernetes")
                self.reporter.outages.met(part, error, now_seconds)
                all_answered = False
            except Exception:  # noqa: BLE001  one object must end neither the others nor the loop
                _LOG.exception("failed putting back knob=%s", actuator.knob)
                self.adapters.exporter.count_failure("controller")
                all_answered = False
            else:
                self.reporter.outages.passed(part, now_seconds)
        return all_answered

    def wanted(self, ref: ResourceRef, lease: int = 0) -> Sequence[Targets] | None:
        """The targets of exactly that resource, by pool, if it may act on them; else none.

        None if it is under another Lease, or was before it was deleted, or if it is not known
        whether it exists.
        """
        resource = self.registry.resources.get((ref.namespace, ref.name))
        if resource is None or resource.record.ref.uid != ref.uid:
            gone = ref.namespace not in self.registry.unread
            return () if gone and lease == self.registry.last_leases.get(ref.uid, 0) else None
        if resource.place.lease != lease:
            return None
        if resource.targets is None:
            return ()
        if acting_limit(resource.targets, self.limits) is not None:
            return ()
        if self.registry.owner_conflict(resource):
            return ()
        return tuple(resource.pools.values())

    def _forget_gone(self, elapsed_seconds: float) -> None:
        """Leave to Lease 0, which always exists, what remains of those that are gone for long."""
        gone = self.registry.last_leases
        for uid in gone:
            self._gone_at.setdefault(uid, elapsed_seconds)
        for uid, since in list(self._gone_at.items()):
            if elapsed_seconds - since >= SWEEP_SECONDS:
                gone.pop(uid, None)
                del self._gone_at[uid]

    async def _tell(self, made: Sequence[Change], failed: set[Change]) -> None:
        """Tell what is news of these changes; those that were refused are added to `failed`."""
        for change in made:
            if change.refusal is not None:
                failed.add(change)
            if change in self._failed:
                continue
            resource = self.registry.resources.get((change.namespace, change.name))
            if resource is None:
                self.reporter.log_line(change)
            else:
                await self.reporter.report_change(resource, change)
