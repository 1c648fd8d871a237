"""A storm of faults drawn by a seed on the rig: real API server, Prometheus and operator process.

    python -m tests.chaos.live --faults 200 [--seed 1] [--pools]

Faults come at random moments and overlap, and people go on asking for things. The checker reads the
audit log afterwards. Ends with 1 where an invariant did not hold; the last line has the figures.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.live_checker import Journal, Order, told_spec, violations
from tests.chaos.storm import TICK_SECONDS, Storm
from tests.integration.operator_under_test import Engines, Operator, install_chart

from servingslo_lab.rig.cluster import Rig

_LAST_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a storm. story: all that happened, for who looks for a cause."""

    seed: int
    kinds: Counter[str]
    orders: int
    wrong: list[str]
    seconds: float
    story: list[str]


def story_of(journal: Journal, orders: Sequence[Order]) -> list[str]:
    """What was asked for, broken and ordered, by time; then the last log lines."""
    events = [
        *(
            (asked.asked, f"{asked.name} asked for {told_spec(asked.spec)}")
            for asked in journal.asked
        ),
        *(
            (spell.began, f"{spell.name} {spell.kind} until {spell.ended:.1f}")
            for spell in journal.spells
        ),
        *((at, f"{name} {deed}") for at, name, deed in journal.deeds),
        *(
            (order.received, f"{order.name} ordered {order.before}->{order.after}")
            for order in orders
        ),
    ]
    return [*(f"{at:.1f} {what}" for at, what in sorted(events)), *journal.log[-_LAST_LINES:]]


def blown(
    rig: Rig, namespace: str, *, seed: int, faults: int, folder: Path, pools: bool = False
) -> Outcome:
    """A storm on a rig that is for it alone, and what was wrong with it.

    pools: a resource with a prefill and a decode pool is in it.
    """
    began = time.monotonic()
    with rig.scrape_plan_kept():
        engines = Engines(rig)
        rig.configure_prometheus(http_sd_url=f"{engines.url}/sd", scrape_interval_seconds=1.0)
        install_chart(rig)
        operator = Operator(rig, f"--tick-seconds={TICK_SECONDS:g}", name=f"operator-{seed}")
        storm = Storm(rig, namespace, engines, operator, seed, folder, pools)
        try:
            storm.begin()
            storm.blow(faults)
            storm.calm()
        finally:
            storm.user.end_traffic()
            operator.stop()
            engines.process.stop()
    seconds = time.monotonic() - began
    storm.journal.ticks = round(seconds / TICK_SECONDS)
    orders = storm.orders()
    return Outcome(
        seed=seed,
        kinds=Counter(storm.drawn),
        orders=len(orders),
        wrong=violations(storm.journal, orders),
        seconds=seconds,
        story=story_of(storm.journal, orders),
    )


def main() -> int:
    """One storm; what was wrong is printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pools", action="store_true", help="Also prefill and decode.")
    options = parser.parse_args()
    with Rig.start() as rig, tempfile.TemporaryDirectory() as folder:
        rig.add_nodes(8)
        outcome = blown(
            rig,
            rig.create_namespace("storm"),
            seed=options.seed,
            faults=options.faults,
            folder=Path(folder),
            pools=options.pools,
        )
    if outcome.wrong:
        print("\n".join([*outcome.story, *outcome.wrong]))
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.kinds.items()))
    print(told)
    print(
        f"seed {outcome.seed}: {outcome.kinds.total()} faults, {outcome.orders} orders, "
        f"{len(outcome.wrong)} violations, {outcome.seconds:.0f} s"
    )
    return bool(outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
