"""Invariants of the ledger of requests.

1. Offered = admitted + refused + queued, whatever gateway and engines count.
2. With both in step it is the truth: what came, what was let in, what was refused.
3. First tries are never fewer than the share that was let in before: a bound hides no demand.
4. Where nobody counts refusals, that is said, and no zero stands for it.
"""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from servingslo.estimation.gateway.counts import GatewayFlow, InstanceFlow
from servingslo.estimation.gateway.counts import measure as measure_gateway
from servingslo.estimation.requests.arrivals import ArrivalMeasurement, ArrivalState, measure
from servingslo.estimation.sample import EngineSample, GatewayInstance, GatewaySample, PodSample
from servingslo.estimation.windows.counters import Window
from servingslo.estimation.windows.freshness import assess
from servingslo.reasons import Reason
from servingslo.runtimes.gateways import CountedWhen

TICK_SECONDS = 15.0
ENGINE = EngineSample(engine="0", running=1.0, gauges_age_seconds=1.0)
SEEN = assess((PodSample(name="a", ready=True, engines=(ENGINE,)),), 60.0)

# Of one tick: came to the gateway, share refused there, share of the rest refused by the engine,
# growth of the gateway's queue, and what went past the gateway.
ticks = st.tuples(
    st.integers(0, 2000),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.integers(-50, 50),
    st.integers(0, 500),
)


def _measured(story, *, counts: bool, read: bool = True) -> list[ArrivalMeasurement]:
    """What is measured of a gateway and one engine behind it, tick by tick, with the truth."""
    state, flows = ArrivalState(), ()
    requests = rejected = queue = 0.0
    found = []
    for tick, (came, share, engine_share, growth, past) in enumerate(story):
        refused = math.floor(share * came)
        queueing = max(min(growth, came - refused), -queue)
        passed = came - refused - queueing
        queue += queueing
        at_engine = math.floor(engine_share * (passed + past))
        requests += refused + passed
        rejected += refused
        instance = GatewayInstance(
            name="envoy", age_seconds=0.0, requests_total=requests, rejected_total=rejected,
            queued=queue,
        )  # fmt: skip
        sample = GatewaySample(counted=CountedWhen.PASSED_ON, instances=(instance,))
        flow: GatewayFlow | None
        known: tuple[InstanceFlow, ...]
        known, flow = measure_gateway(
            flows, sample if read else None, 1000.0 + TICK_SECONDS * tick, 60.0
        )
        flows = known
        window = Window(
            pod="a", engine="0", seconds=TICK_SECONDS,
            first_tokens=float(passed + past - at_engine),
            rejected=float(at_engine) if counts else None,
        )  # fmt: skip
        state, measured = measure(state, [window], SEEN, flow)
        found.append(measured)
    return found


@given(st.lists(ticks, min_size=1, max_size=12), st.booleans(), st.booleans())
def test_the_sum_is_exact(story, counts, read) -> None:
    """Invariant 1, also where requests go past the gateway or it says nothing yet."""
    for measured in _measured(story, counts=counts, read=read):
        ledger = measured.ledger
        assert ledger is not None
        gone = (ledger.refused_per_second or 0.0) + ledger.queueing_per_second
        assert math.isclose(
            ledger.offered_per_second, ledger.admitted_per_second + gone, abs_tol=1e-9
        )
        assert ledger.admitted_per_second >= -1e-9
        assert (ledger.refused_per_second or 0.0) >= 0.0


@given(
    st.lists(
        st.tuples(
            st.integers(100, 2000), st.floats(0.0, 0.9), st.floats(0.0, 1.0), st.just(0), st.just(0)
        ),
        min_size=2,
        max_size=12,
    )
)
def test_in_step_it_is_the_truth(story) -> None:
    """Invariants 2 and 3."""
    measured = _measured(story, counts=True)
    for (before, now), seen in zip(itertools.pairwise(story), measured[1:], strict=True):
        came, share, engine_share = now[0], now[1], now[2]
        at_gateway = math.floor(share * came)
        at_engine = math.floor(engine_share * (came - at_gateway))
        ledger = seen.ledger
        assert ledger is not None
        assert ledger.reason is Reason.GATEWAY_COUNTS
        assert math.isclose(ledger.offered_per_second, came / TICK_SECONDS)
        assert ledger.refused_per_second is not None
        refused = (at_gateway + at_engine) / TICK_SECONDS
        assert math.isclose(ledger.refused_per_second, refused, abs_tol=1e-9)
        had = before[0]
        lost = math.floor(before[1] * had)
        let_in = had - lost - math.floor(before[2] * (had - lost))
        assert seen.first_attempts_per_second is not None
        assert seen.first_attempts_per_second >= came / TICK_SECONDS * min(let_in / had, 1.0) - 1e-9


@given(st.lists(ticks, min_size=1, max_size=6))
def test_refusals_that_nobody_counts_are_unknown(story) -> None:
    """Invariant 4."""
    for measured in _measured(story, counts=False, read=False):
        assert measured.ledger is not None
        assert measured.ledger.reason is Reason.REFUSALS_UNSEEN
        assert measured.ledger.refused_per_second is None
