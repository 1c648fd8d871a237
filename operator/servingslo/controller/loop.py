"""The control loop: one asyncio task, one reading of all metrics for each tick."""

import asyncio
import gc
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.api.fence import under_lease
from servingslo.adapters.kubernetes.resources import PartlyListedError
from servingslo.controller.adapters import Adapters
from servingslo.controller.grants import priority_of
from servingslo.controller.lease.lead import Holdings, Lead
from servingslo.controller.place import Place
from servingslo.controller.reconciler import Reconciler
from servingslo.controller.registry import Key, Registry, Resource
from servingslo.controller.undoing import Undoing
from servingslo.errors import ClusterError
from servingslo.policy.inputs import SignalProblem
from servingslo.policy.ports import ClusterMetrics

_LOG = logging.getLogger(__name__)
# Several changes at once, such as those of one `kubectl apply`, are one wake-up.
_DEBOUNCE_SECONDS = 0.2
# A reconciliation between ticks reads all metrics, for users who change their resources. Two of
# them are at least this many times their duration apart, so they take at most a fifth of the loop.
_REST_RATIO = 4.0
# kopf's watch may miss a deletion in a gap, so the resources are listed again this often.
_RELIST_SECONDS = 300.0
_RELIST_RETRY_SECONDS = 15.0
_LIST = ("list of resources", "all")
# In a row of ticks that take too long, one in this many is reported.
_OVERRUNS_TOLD = 20
# After this many ticks, lasting objects exist: modules and resources after the first, the memory of
# each resource after some minutes.
_SETTLED_TICKS = frozenset({1, 20})
# Objects created between two runs of the garbage collector (Python: 700): a tick creates and drops
# millions, nearly none of them in cycles.
_COLLECTED_OBJECTS = 20_000
# Requests under way at once; the API server's fairness limits more anyway.
_CONCURRENCY = 16


@dataclass(slots=True)
class Controller:
    """Reconciles every resource each tick, and changed ones at once.

    lead: whether this process may act, and where. It decides only there; elsewhere it keeps its
    view of the cluster warm.
    """

    adapters: Adapters
    registry: Registry
    reconciler: Reconciler
    tick_seconds: float
    undoing: Undoing
    lead: Lead = field(default_factory=Lead)
    _holdings: Holdings = field(init=False)
    _leading: str | None = None
    # By namespace and number of the release's Lease.
    _terms: dict[tuple[str, int], str] = field(default_factory=dict)
    _places: dict[str, Place] = field(default_factory=dict)
    _relisted_at: float = float("-inf")
    _listed: bool = False
    _overruns: int = 0
    _ticked: int = 0
    _known: dict[str, Resource] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reconciler = self.reconciler
        self._holdings = Holdings(
            adapters=self.adapters,
            registry=self.registry,
            joined=reconciler.grants.joined,
            learned=reconciler.learned,
            hand_over=reconciler.reporter.hand_over,
        )

    async def run(self) -> None:
        """Tick until cancelled."""
        reporter = self.reconciler.reporter
        writing = asyncio.create_task(reporter.write_behind(self.tick_seconds), name="statuses")
        try:
            await self._ticks()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _ticks(self) -> None:
        while True:
            started = SystemClock.elapsed_seconds()
            if self.registry.take_woken():
                # If ticks overrun, no other code checks which resources are gone.
                self.undoing.ask()
            self._take_turn()
            await self._relist_when_due(started)
            await self._tick(tuple(self.registry.resources))
            await self._undo()
            duration_seconds = SystemClock.elapsed_seconds() - started
            self.adapters.exporter.observe_tick(duration_seconds, succeeded=self._listed)
            self.note_duration(duration_seconds)
            self._spare_collector()
            await self._rest(started + self.tick_seconds)

    def note_duration(self, duration_seconds: float) -> None:
        """Report that ticks take longer than the tick interval: at the first, then occasionally.

        `/readyz` reports it as long as it lasts.
        """
        if duration_seconds <= self.tick_seconds:
            if self._overruns:
                _LOG.info("ticks are in time again overran=%d", self._overruns)
            self._overruns = 0
        else:
            self._overruns += 1
        self.adapters.exporter.observe_overruns(
            self._overruns, seconds=duration_seconds, tick_seconds=self.tick_seconds
        )
        if not self._overruns:
            return
        if self._overruns % _OVERRUNS_TOLD == 1:
            _LOG.warning(
                "tick overran seconds=%.1f tick_seconds=%.1f in_a_row=%d resources=%d",
                duration_seconds,
                self.tick_seconds,
                self._overruns,
                len(self.registry.resources),
            )

    def _spare_collector(self) -> None:
        """Exclude lasting objects from garbage collection, so that they are not walked again."""
        if not self.registry.resources:
            return
        self._ticked += 1
        if self._ticked in _SETTLED_TICKS:
            gc.set_threshold(_COLLECTED_OBJECTS, *gc.get_threshold()[1:])
            gc.collect()
            gc.freeze()

    async def _rest(self, until: float) -> None:
        """Sleep until the next tick, and reconcile resources that change meanwhile."""
        rested = float("-inf")
        while (left := until - SystemClock.elapsed_seconds()) > 0:
            try:
                # Unlike wait_for of Python 3.11, this loses no cancellation.
                async with asyncio.timeout(left):
                    await self.registry.woken()
            except TimeoutError:
                return
            if self.lead.process_term() not in {None, self._leading}:
                return  # a new leader reconciles everything at once
            began = max(SystemClock.elapsed_seconds() + _DEBOUNCE_SECONDS, min(rested, until))
            await asyncio.sleep(began - SystemClock.elapsed_seconds())
            await self._tick(tuple(self.registry.take_woken()))
            self.undoing.ask()
            await self._undo()
            ended = SystemClock.elapsed_seconds()
            rested = ended + _REST_RATIO * (ended - began)

    async def _tick(self, keys: tuple[Key, ...]) -> None:
        """Reconcile these resources, with one reading of the metrics for all of them."""
        self._forget_gone()
        await self._claim()
        await self._arrange()
        known = (entry for key in keys if (entry := self.registry.resources.get(key)))
        resources = [entry for entry in known if self._acts(entry) and self.lead.is_placed(entry)]
        if not resources:
            # What is shared may have no resource, or one that was deleted.
            await self._share()
        else:
            if self.adapters.history is not None:
                self.adapters.history.tick()
            for reader in self.adapters.readers:
                reader.tick()
            metrics = await self.adapters.metrics.read(self._own_pods())
            news = self.reconciler.reporter.reading
            news.take(metrics.problem, self.adapters.clock.now_seconds())
            if metrics.problem is not None:
                self.adapters.exporter.count_failure("prometheus")
            conflicts = self.registry.conflicts()
            await self._share()
            # Who comes first plans first.
            resources.sort(key=lambda entry: -priority_of(entry, self.reconciler.limits))
            limit = asyncio.Semaphore(_CONCURRENCY)
            await asyncio.gather(
                *(
                    self._reconcile(
                        resource, metrics, conflicts.get(resource.record.ref.uid), limit
                    )
                    for resource in resources
                )
            )

    def _own_pods(self) -> Collection[str] | None:
        """Pods of this process's resources, if others have theirs; None while one is not known."""
        if self.lead.holds_all():
            return None
        own: set[str] = set()
        for entry in self.registry.resources.values():
            pods = self.reconciler.pods(entry) if self._acts(entry) else ()
            if pods is None:
                return None
            own.update(pods)
        return own

    async def _share(self) -> None:
        """The grants of this tick; after a failure those of the last one hold.

        Until all resources are listed, some that are not seen yet may hold GPUs: nothing is shared.
        """
        if not self._listed:
            return
        held, every = self.lead.held(), tuple(self.registry.resources.values())
        acting = [entry for entry in every if self._acts(entry)]
        try:
            told = await self.reconciler.grants.share(acting, every, held)
            for resource, event in told:
                await self.reconciler.reporter.post(resource, event)
        except Exception:  # noqa: BLE001  the loop must survive
            _LOG.exception("failed grants")
            self.adapters.exporter.count_failure("controller")

    async def _undo(self) -> None:
        """Put back values that are no longer wanted, but only once all resources are listed."""
        if self._listed and self.lead.process_term() is not None:
            await self.undoing.when_due(SystemClock.elapsed_seconds(), self.lead.held())

    def _take_turn(self) -> None:
        """List again if this process has just become leader: other processes wrote until then."""
        term = self.lead.process_term()
        if term is not None and term != self._leading:
            self._leading = term
            self._relisted_at = float("-inf")
            self.undoing.ask()

    async def _claim(self) -> None:
        """Find out where this process acts; drop memory from before another process acted there."""
        resources = tuple(self.registry.resources.values())
        await self.lead.claim(
            {entry.record.ref.namespace for entry in resources},
            {entry.place.lease for entry in resources},
        )
        terms, places = dict(self._terms), self._places
        self._places = {entry.record.ref.uid: entry.place for entry in resources}
        for entry in resources:
            ref, place = entry.record.ref, entry.place
            key = ref.namespace, place.lease
            term, before = self.lead.term(*key), self._terms.get(key)
            if term is None:
                self.adapters.exporter.forget(ref.namespace, ref.name)
            else:
                terms[key] = term
            # The process that decided before may have learnt more.
            stale = term is not None and before not in {None, term}
            if stale or places.get(ref.uid, place) != place:
                self._forget(entry)
        self._terms = terms

    async def _arrange(self) -> None:
        """Hand over what another process should decide, before anything is decided for it."""
        for entry in await self.lead.arrange(self._holdings, self._acts, listed=self._listed):
            self._forget(entry)

    def _forget(self, entry: Resource) -> None:
        self.reconciler.forget(entry.record.ref.uid)
        self.reconciler.reporter.forget(entry)

    def _acts(self, resource: Resource) -> bool:
        key = resource.record.ref.namespace, resource.place.lease
        term = self.lead.term(*key)
        return term is not None and term == self._terms.get(key)

    async def _reconcile(
        self,
        resource: Resource,
        metrics: ClusterMetrics,
        conflict: SignalProblem | None,
        limit: asyncio.Semaphore,
    ) -> None:
        ref = resource.record.ref
        async with limit:
            if not self._acts(resource):
                return  # the lease was lost meanwhile
            with under_lease(resource.place.lease):
                try:
                    again = await self.reconciler.reconcile(resource, metrics, conflict)
                except Exception as error:  # noqa: BLE001  the loop over resources must survive
                    _LOG.exception("failed namespace=%s name=%s", ref.namespace, ref.name)
                    self.adapters.exporter.count_failure("controller")
                    with suppress(Exception):
                        await self.reconciler.reporter.fail(resource, error)
                    return
        if again:
            self.registry.wake((ref.namespace, ref.name))

    def _forget_gone(self) -> None:
        """Drop the memory of resources that no longer exist."""
        now = {entry.record.ref.uid: entry for entry in self.registry.resources.values()}
        for uid, resource in self._known.items():
            if uid not in now:
                self.reconciler.forget(uid)
                self.reconciler.reporter.forget(resource)
                if self._acts(resource):
                    ref = resource.record.ref
                    _LOG.info("deleted namespace=%s name=%s", ref.namespace, ref.name)
                # A new resource of the same name exports under the same labels again on its next
                # tick.
        self._known = now

    async def _relist_when_due(self, now: float) -> None:
        if now - self._relisted_at < _RELIST_SECONDS:
            return
        outages, unread = self.reconciler.reporter.outages, frozenset[str]()
        try:
            records = await self.adapters.resources.read_all()
            outages.passed(_LIST, self.adapters.clock.now_seconds())
        except ClusterError as error:
            self.adapters.exporter.count_failure("kubernetes")
            outages.met(_LIST, error, self.adapters.clock.now_seconds())
            if not isinstance(error, PartlyListedError):
                self._relisted_at = now - _RELIST_SECONDS + _RELIST_RETRY_SECONDS
                return
            records, unread = error.found, error.refused
        self.registry.replace_all(records, unread)
        self._relisted_at = now
        self._listed = True
