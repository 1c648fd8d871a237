"""Limits of dynamic batches on each pod, read from its server, and what is decided about them.

The observation contains them by pod, as numbers of the actuator that sets them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Self

from servingslo.models.engine.service_time import DynamicBatcher
from servingslo.plugins import Key
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import InForce
from servingslo.policy.knobs.decisions import BatchingDecision, Decided, KnobDecision
from servingslo.policy.knobs.trial.comparison import Sample

# The knob and its actuator.
DYNAMIC_BATCHING = "dynamic-batching"
# Seconds: Triton states queue delays in microseconds.
_MICROSECONDS = 1e-6
# Between a pod's name, which has no slash, and the name of a number.
_SEPARATOR = "/"


class BatcherLimits(NamedTuple):
    """Limits as in a model's configuration; max_queue_size 0 is unlimited."""

    max_batch_size: int
    max_queue_delay_microseconds: int
    max_queue_size: int

    def __str__(self) -> str:
        """'8/20000/64'."""
        return "/".join(map(str, self))


class Owner(IntEnum):
    """Who set the limits: the model's own configuration, this resource, another one."""

    NOBODY = 0
    OURS = 1
    ANOTHER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PodBatcher:
    """Limits of one pod, and its counters since its model was loaded.

    former_max_batch_size: of the model's own configuration. batches: number of executions and their
    time in microseconds, by size. request_microseconds: total of the answered requests. told_owner:
    the owner that the server reports; '' for none.
    """

    limits: BatcherLimits
    instances: int = 1
    owner: Owner = Owner.NOBODY
    former_max_batch_size: int = 1
    requests: int = 0
    request_microseconds: int = 0
    failed: int = 0
    batches: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    told_owner: str = ""


_NUMBERS = (
    "instances",
    "owner",
    "former_max_batch_size",
    "requests",
    "request_microseconds",
    "failed",
)


def values_of(batchers: Mapping[str, PodBatcher]) -> dict[str, int | None]:
    """Limits and counters of pods, as numbers by name."""
    values: dict[str, int | None] = {}
    for pod, one in batchers.items():
        told = {**one.limits._asdict(), **{name: int(getattr(one, name)) for name in _NUMBERS}}
        for size, (count, microseconds) in one.batches.items():
            told[f"batches.{size}"], told[f"microseconds.{size}"] = count, microseconds
        values |= {f"{pod}{_SEPARATOR}{name}": value for name, value in told.items()}
    return values


def batchers_of(standing: InForce | None) -> dict[str, PodBatcher]:
    """The reverse of `values_of`; a pod that lacks a number is left out."""
    told: dict[str, dict[str, int]] = {}
    for key, value in ({} if standing is None else standing.values).items():
        pod, _, name = key.partition(_SEPARATOR)
        if value is not None:
            told.setdefault(pod, {})[name] = value
    whole = {
        pod: numbers
        for pod, numbers in told.items()
        if {*BatcherLimits._fields, *_NUMBERS} <= numbers.keys()
        and numbers["max_batch_size"] >= 1
        and numbers["owner"] in set(Owner)
    }
    return {pod: _batcher(numbers) for pod, numbers in whole.items()}


def _batcher(numbers: Mapping[str, int]) -> PodBatcher:
    named = (name.partition(".") for name in numbers)
    sizes = [int(size) for kind, _, size in named if kind == "batches" and size.isdecimal()]
    told = {name: numbers[name] for name in _NUMBERS if name != "owner"}
    return PodBatcher(
        limits=BatcherLimits(*(numbers[name] for name in BatcherLimits._fields)),
        owner=Owner(numbers["owner"]),
        batches={
            size: (numbers[f"batches.{size}"], numbers.get(f"microseconds.{size}", 0))
            for size in sizes
        },
        told_owner="",
        **told,
    )


def batcher_in_force(batchers: Mapping[str, PodBatcher]) -> DynamicBatcher | None:
    """How batches form; if pods differ, on the one that carries least; None without pods."""
    if not batchers:
        return None
    limits = [one.limits for one in batchers.values()]
    rooms = [one.max_queue_size for one in limits if one.max_queue_size]
    return with_limits(
        BatcherLimits(
            max_batch_size=min(one.max_batch_size for one in limits),
            max_queue_delay_microseconds=max(one.max_queue_delay_microseconds for one in limits),
            max_queue_size=min(rooms, default=0),
        ),
        min(one.instances for one in batchers.values()),
    )


def with_limits(limits: BatcherLimits, instances: int) -> DynamicBatcher:
    """How batches form with these limits."""
    return DynamicBatcher(
        largest_batch=limits.max_batch_size,
        window_seconds=limits.max_queue_delay_microseconds * _MICROSECONDS,
        room=limits.max_queue_size,
        instances=instances,
    )


def request_sample(pairs: Iterable[tuple[PodBatcher, PodBatcher]]) -> Sample:
    """Requests between each pair of counters; one that fell began at zero.

    Design effect: the mean batch of a request, because all requests of a batch are answered
    together.
    """
    answered = failed = microseconds = engines = executed = weighted = 0
    for before, now in pairs:
        fell = now.requests < before.requests or now.failed < before.failed
        began = PodBatcher(limits=now.limits) if fell else before
        engines += 1
        answered += now.requests - began.requests
        failed += now.failed - began.failed
        microseconds += max(now.request_microseconds - began.request_microseconds, 0)
        for size, (count, _) in now.batches.items():
            ran = max(count - began.batches.get(size, (0, 0))[0], 0)
            executed, weighted = executed + ran * size, weighted + ran * size**2
    return Sample(
        answered=answered,
        failed=failed,
        mean_seconds=microseconds * _MICROSECONDS / answered if answered else None,
        engines=engines,
        design_effect=max(weighted / executed, 1.0) if executed else 1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherDecision(KnobDecision):
    """Limits of dynamic batches that are set on servers while they run.

    before: the limits that most pods have. after: the limits that all pods are to have; None if
    none are known, or if the limits from before ours are restored. pods: those that are set at this
    tick. puts_back: they get back the limits from before ours.
    """

    before: BatcherLimits | None = None
    after: BatcherLimits | None = None
    pods: tuple[str, ...] = ()
    puts_back: bool = False

    def hold(self) -> Self:
        """Set no pod."""
        return replace(self, pods=())

    def amended(self, other: Decided) -> Decided:
        """Batch limits are reported as those of dynamic batches, because servers have them."""
        if not isinstance(other, BatchingDecision):
            return other
        change = ""
        if self.after is not None and self.after != self.before:
            change = ", ".join(
                f"{name} {before} → {after}"
                for name, before, after in zip(
                    BatcherLimits._fields, self.before or (), self.after, strict=False
                )
                if before != after
            )
        detail = ": ".join(part for part in (change, self.detail) if part)
        return replace(other, reason=self.reason, detail=detail)


# Its place in documents.
BATCHER: Key[KnobDecision] = Key("batcher", BatcherDecision)


def batcher_of(decision: Decision) -> BatcherDecision | None:
    """Limits of dynamic batches; None if none are read from servers."""
    found = decision.knobs.get(DYNAMIC_BATCHING)
    return found if isinstance(found, BatcherDecision) else None
