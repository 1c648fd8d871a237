"""Rows that no setting may be chosen on, blind cases too: only `make guard KEPT=1` plays them."""

from dataclasses import replace
from functools import partial

import numpy as np
from tests.benchmarks.guard_row import Row
from tests.benchmarks.guard_rows import BLIND_CASES, document_bursts
from tests.benchmarks.guard_traffic import (
    agents,
    plain_noise,
    swell,
    traffic_of,
    with_batches,
    working_day,
)
from tests.benchmarks.guard_unseen import fleet_of
from tests.benchmarks.matrix_blind_cases import CARD_RATES, CARDS, CASES, trace_of

from servingslo_lab.sim.fleets.fleet import ClientSpec, ColdStart, SlowPods
from servingslo_lab.sim.fleets.service import Routing
from servingslo_lab.sim.traces.trace import Trace
from servingslo_lab.sim.traces.workloads import generated, uniform_lengths

_TAG = 89  # of random generators
# Prompts that take at most half of the TTFT objective alone, on the small card.
_DOCUMENTS = uniform_lengths((800, 6_000), (8, 60))


def _documents(seed: int) -> Trace:
    rng = np.random.default_rng([seed, _TAG])
    return generated(document_bursts(rng, 75.0).scaled(CARD_RATES["l4"]), _DOCUMENTS, rng)


_KEPT = (
    Row(
        name="h100 noise that grows",
        kind="rise",
        fleet=fleet_of("h100"),
        traffic=traffic_of(
            lambda rng: working_day(
                rng, minutes=110, low=15.0, high=110.0, deviation=0.25, grows=True
            )
        ),
        unseen=True,
    ),
    Row(
        name="h100 batch on a chat",
        kind="burst recurring",
        fleet=fleet_of("h100"),
        traffic=with_batches(
            lambda rng: plain_noise(rng, minutes=60, mean=50.0),
            minutes=((15.0, 20.0), (38.0, 45.0)),
            sizes=(2_000, 6_000),
        ),
        unseen=True,
    ),
    Row(
        name="h100 impatient clients",
        kind="clients",
        fleet=replace(
            fleet_of("h100"),
            clients=ClientSpec(first_token_timeout_seconds=8.0, timeout_seconds=60.0, retries=3),
        ),
        traffic=traffic_of(lambda rng: working_day(rng, minutes=90, low=25.0, high=100.0)),
        unseen=True,
    ),
    Row(
        name="l4 long prompts in bursts",
        kind="burst recurring",
        fleet=fleet_of("l4"),
        traffic=_documents,
        unseen=True,
    ),
    Row(
        name="h100 from 2 to 200/s, cold start 600 s",
        kind="rise",
        fleet=fleet_of("h100", 600.0),
        traffic=traffic_of(lambda rng: swell(rng, minutes=150, low=2.0, high=200.0)),
        unseen=True,
    ),
    Row(
        name="l4 agents, slow pods",
        kind="slow pods",
        fleet=replace(
            fleet_of("l4"),
            routing=Routing.PREFIX_AFFINE,
            slow_pods=SlowPods(share_ratio=0.2, factor=1.6),
        ),
        traffic=agents(minutes=70.0, groups_per_minute=2.0, group=(3, 21)),
        unseen=True,
    ),
)
_BLIND = (
    Row(
        name=name,
        kind="blind",
        fleet=replace(CARDS[case.card], cold_start=ColdStart(mean_seconds=case.cold_start_seconds)),
        traffic=partial(trace_of, case),
        unseen=True,
    )
    for name, case in CASES.items()
    if name not in BLIND_CASES
)
KEPT = (*_KEPT, *_BLIND)
