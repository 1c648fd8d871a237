"""Six rows of traffic, fleets and clients that no setting was chosen on."""

from dataclasses import replace

from tests.benchmarks.guard_row import Row
from tests.benchmarks.guard_traffic import agents, plain_noise, swell, traffic_of, working_day
from tests.benchmarks.matrix import COLD_START_SECONDS
from tests.benchmarks.matrix_blind_cases import CARD_RATES, CARDS

from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec, Slowing, SlowPods
from servingslo_lab.sim.fleets.service import Routing


def fleet_of(card: str, cold_start_seconds: float = COLD_START_SECONDS) -> FleetSpec:
    """The fleet of a card with so long a cold start."""
    return replace(CARDS[card], cold_start=ColdStart(mean_seconds=cold_start_seconds))


UNSEEN = (
    Row(
        name="h100 working day",
        kind="rise",
        fleet=fleet_of("h100"),
        traffic=traffic_of(lambda rng: working_day(rng, minutes=120, low=20.0, high=90.0)),
        unseen=True,
    ),
    Row(
        name="h100 slow pods",
        kind="slow pods",
        fleet=replace(fleet_of("h100"), slow_pods=SlowPods(share_ratio=0.25, factor=2.0)),
        traffic=traffic_of(lambda rng: working_day(rng, minutes=70, low=45.0, high=50.0)),
        unseen=True,
    ),
    Row(
        name="h100 slowing service",
        kind="slow pods",
        fleet=replace(fleet_of("h100"), slowing=Slowing(factor=1.4, seconds=3600.0)),
        traffic=traffic_of(lambda rng: plain_noise(rng, minutes=70, mean=80.0)),
        unseen=True,
    ),
    Row(
        name="h100 agents",
        kind="burst recurring",
        fleet=replace(fleet_of("h100"), routing=Routing.PREFIX_AFFINE),
        traffic=agents(minutes=60.0, groups_per_minute=4.0, group=(4, 44)),
        unseen=True,
    ),
    Row(
        name="l4 swell, cold start 20 s",
        kind="rise",
        fleet=fleet_of("l4", 20.0),
        traffic=traffic_of(
            lambda rng: swell(rng, minutes=75, low=6.0, high=150.0),
            CARD_RATES["l4"],
            most_prompt=6_000,
        ),
        unseen=True,
    ),
    Row(
        name="a100 day, cold start 300 s",
        kind="rise",
        fleet=fleet_of("a100", 300.0),
        traffic=traffic_of(
            lambda rng: working_day(rng, minutes=120, low=30.0, high=90.0),
            CARD_RATES["a100"],
            most_prompt=9_000,
        ),
        unseen=True,
    ),
)  # fmt: skip
