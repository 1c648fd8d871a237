"""The sample of the grid that `make validate` prints, in groups."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

from tests.validation.grid import A100, H100, L4, Card, Case, Lengths

# Close to saturation a run is one long wait: four times as many requests tell it.
_LONG = 1_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cases that are printed together.

    outside: why the targets do not apply, empty where they do. bound: why the law is a bound there,
    which is held to no more latency than it says; empty elsewhere. kv_bound: the KV cache binds,
    and the target for that applies.
    """

    name: str
    cases: list[Case]
    outside: str = ""
    bound: str = ""
    kv_bound: bool = False


def groups() -> Iterator[Group]:
    """The sample, those to which targets apply first."""
    yield Group(name="one replica, Poisson", cases=_alone())
    yield Group(
        name="KV-bound",
        cases=[
            Case(card=card, rate_per_second=rate)
            for card, rates in ((A100, (8.0,)), (L4, (2.6, 2.8, 3.0, 3.1)))
            for rate in rates
        ],
        kv_bound=True,
    )
    yield Group(name="least-loaded routing", cases=_least_loaded())
    yield Group(name="random routing", cases=_random())
    yield Group(name="prefix cache", cases=_prefix_cache())
    yield Group(
        name="token budget",
        cases=_token_budget(),
        bound="prompts that queue for the budget are taken to meet a fuller engine than they do",
    )
    yield Group(
        name="short outputs",
        cases=[_short(6, 8, 8192), _short(13, 8, 8192)],
        bound="a pool sends fewer requests to a replica that prefills than the law has",
    )
    yield Group(
        name="long prompts, outputs of a few tokens",
        cases=[
            *_long_prompts((1024, 2048, 8192), (1.0, 1.5, 2.0, 2.5)),
            *_long_prompts((8192,), (2.8,)),
        ],
        bound="as for short outputs; and what comes while a prompt is prefilled delays its end",
    )
    yield Group(name="bursty arrivals", cases=list(starmap(_burst, _BURSTS)))
    yield from _outside()


def _outside() -> Iterator[Group]:
    yield Group(
        name="work ratio above 0.85",
        cases=[
            Case(card=H100, rate_per_second=15.4, request_count=_LONG),
            Case(card=H100, rate_per_second=16, request_count=_LONG),
            Case(card=H100, rate_per_second=16, replica_count=8, request_count=_LONG),
            Case(card=H100, rate_per_second=22.3, cached_ratio=0.5, request_count=_LONG),
            _short(14, 8, 8192),
        ],
        outside="targets end at 0.85; these are 0.86 to 0.98 of saturation",
    )
    yield Group(
        name="bursts that nearly fill the engine, or swing widely for longer than a residence",
        cases=list(starmap(_burst, _STRONG_BURSTS)),
        outside="two rates with one memory stand for a rate that is between them, and what runs is"
        " taken to follow it as a linear filter",
    )
    yield Group(
        name="bursty arrivals, of which only the index of dispersion is known",
        cases=[_burst(*case, memory_known=False) for case in _BURSTS_OF_UNKNOWN_MEMORY],
        outside="one index of dispersion fits short wide bursts and long flat ones alike",
    )


def _alone() -> list[Case]:
    return [
        Case(card=card, rate_per_second=rate)
        for card, rates in (
            (H100, (2, 3.6, 5, 8, 11, 14, 15)),
            (A100, (1, 3, 5, 7, 7.5)),
            (L4, (0.5, 1, 1.5, 2, 2.4)),
        )
        for rate in rates
    ]


def _least_loaded() -> list[Case]:
    cases = [
        Case(card=card, rate_per_second=rate, replica_count=count)
        for card, rates in ((H100, (5, 14)), (L4, (1.5, 2.6)))
        for rate in rates
        for count in (2, 4, 8, 16)
    ]
    return [*cases, Case(card=H100, rate_per_second=15, replica_count=8)]


def _random() -> list[Case]:
    cases = [
        Case(card=H100, rate_per_second=rate, replica_count=8, least_loaded=False)
        for rate in (8, 14, 15)
    ]
    return [*cases, Case(card=L4, rate_per_second=2, replica_count=4, least_loaded=False)]


def _prefix_cache() -> list[Case]:
    cases = [
        Case(card=H100, rate_per_second=rate, cached_ratio=share)
        for rate, share in ((12, 0.5), (18, 0.5), (21.5, 0.5), (18, 0.8), (26, 0.8))
    ]
    return [
        *cases,
        Case(card=H100, rate_per_second=29, cached_ratio=0.8, request_count=_LONG),
    ]


def _token_budget() -> list[Case]:
    cases = [
        Case(card=H100, rate_per_second=rate, budget_tokens=budget)
        for rate, budget in (
            (5, 512),
            (8, 512),
            (12, 512),
            (12.5, 512),
            (10, 1024),
            (14.5, 1024),
            (12, 2048),
        )
    ]
    short = [_short(9, 8, budget) for budget in (512, 1024, 2048, 8192)]
    return [*cases, *short, _short(9, 1, 8192)]


def _long_prompts(budgets: tuple[int, ...], rates: tuple[float, ...]) -> list[Case]:
    return [
        Case(
            card=H100,
            rate_per_second=rate,
            replica_count=12,
            budget_tokens=budget,
            lengths=Lengths.LONG_PROMPTS,
            request_count=100_000,
        )
        for budget in budgets
        for rate in rates
    ]


def _short(rate: float, count: int, budget: int) -> Case:
    return Case(
        card=H100,
        rate_per_second=rate,
        replica_count=count,
        budget_tokens=budget,
        lengths=Lengths.SHORT_OUTPUTS,
    )


# Card, rate, replicas, least loaded, swing and dwell time in seconds. Residences are 2 to 4 s.
_Burst = tuple[Card, float, int, bool, tuple[float, float]]
_FIRST_BURSTS: list[_Burst] = [
    (H100, 10.0, 1, True, (0.3, 2.0)),
    (H100, 10.0, 1, True, (0.5, 2.0)),
    (H100, 10.0, 1, True, (0.5, 8.0)),
    (H100, 10.0, 1, True, (0.9, 0.5)),
    (A100, 5.0, 1, True, (0.5, 4.0)),
    (H100, 10.0, 8, True, (0.5, 4.0)),
    (H100, 10.0, 8, False, (0.5, 4.0)),
]
_BURSTS: list[_Burst] = [
    *_FIRST_BURSTS,
    (H100, 10.0, 1, True, (0.9, 0.25)),
    (H100, 10.0, 1, True, (0.5, 0.5)),
    (H100, 10.0, 1, True, (0.7, 1.0)),
    (H100, 10.0, 1, True, (0.9, 2.0)),
    (H100, 10.0, 1, True, (0.3, 8.0)),
    (H100, 10.0, 1, True, (0.3, 30.0)),
    (H100, 5.0, 1, True, (0.9, 2.0)),
    (H100, 5.0, 1, True, (0.5, 30.0)),
    (H100, 13.0, 1, True, (0.3, 0.5)),
    (H100, 13.0, 1, True, (0.3, 2.0)),
    (A100, 5.0, 1, True, (0.5, 1.0)),
    (A100, 5.0, 1, True, (0.9, 1.0)),
    (A100, 5.0, 1, True, (0.5, 12.0)),
    (L4, 1.5, 1, True, (0.5, 2.0)),
    (L4, 1.5, 1, True, (0.9, 2.0)),
    (L4, 1.5, 1, True, (0.5, 20.0)),
    (H100, 10.0, 8, True, (0.5, 1.0)),
    (H100, 10.0, 8, True, (0.5, 8.0)),
    (H100, 10.0, 8, False, (0.5, 1.0)),
    (H100, 10.0, 8, False, (0.5, 8.0)),
]
_STRONG_BURSTS: list[_Burst] = [
    (H100, 10.0, 1, True, (0.5, 16.0)),
    (H100, 10.0, 1, True, (0.9, 8.0)),
    (H100, 5.0, 1, True, (0.9, 8.0)),
    (H100, 10.0, 8, True, (0.5, 12.0)),
    (H100, 10.0, 8, False, (0.5, 12.0)),
]
_BURSTS_OF_UNKNOWN_MEMORY: list[_Burst] = [
    *_FIRST_BURSTS,
    (H100, 10.0, 1, True, (0.9, 0.25)),
    (H100, 10.0, 1, True, (0.5, 0.5)),
    (H100, 10.0, 1, True, (0.9, 2.0)),
    (H100, 10.0, 1, True, (0.3, 30.0)),
    (A100, 5.0, 1, True, (0.9, 1.0)),
    (L4, 1.5, 1, True, (0.5, 20.0)),
]


def _burst(
    card: Card, rate: float, count: int, least_loaded: bool, burst: tuple[float, float],
    memory_known: bool = True,
) -> Case:  # fmt: skip
    return Case(
        card=card,
        rate_per_second=rate,
        replica_count=count,
        least_loaded=least_loaded,
        burst=burst,
        memory_known=memory_known,
    )


def saturated() -> list[Case]:
    """Overloaded cases, whose departures are the saturation rate."""
    return [
        Case(card=card, rate_per_second=rate, budget_tokens=budget, cached_ratio=share,
             request_count=100_000)
        for card, rate, budget, share in (
            (H100, 30, None, 0.0), (H100, 30, 512, 0.0), (H100, 30, 1024, 0.0),
            (H100, 45, None, 0.5), (A100, 14, None, 0.0), (L4, 6, None, 0.0), (L4, 6, None, 0.5),
            (L4, 6, 256, 0.0),
        )
    ]  # fmt: skip
