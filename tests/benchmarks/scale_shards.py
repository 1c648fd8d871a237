"""What several operators that share the resources do with many workloads, each of its own.

    python -m tests.benchmarks.scale_shards --resources 240 --shards 3 [--minutes 5]

As `tests.benchmarks.scale`, with a process for each shard; a row says what each of them uses.
"""

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median

from tests.benchmarks.scale import (
    FIRST_WITHIN_SECONDS,
    RESTARTED_TICKS,
    cores,
    cpu_seconds,
    measure,
    parser,
    print_row,
    say,
)
from tests.integration.many_workloads import ManyWorkloads, Watched
from tests.integration.shards import held_by_each, sharded

from servingslo_lab.rig.waiting import wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFigures:
    """One row of several processes; a list has a value for each of them."""

    resources: int
    pods: int
    decided: list[int]
    ticks: list[int]
    tick_median_seconds: list[float]
    tick_worst_seconds: list[float]
    tick_cpu_median_seconds: list[float]
    tick_cpu_p99_seconds: list[float]
    peak_mebibytes: list[float]
    prometheus_cores: tuple[float, float]
    api_server_cores: tuple[float, float]
    load_average: float


def _watch(
    many: ManyWorkloads,
    alone: tuple[float, float],
    options: argparse.Namespace,
    settings: Sequence[str],
) -> ShardFigures:
    operators = [sharded(many.rig, options.shards, *settings) for _ in range(options.shards)]
    for one in operators:
        one.start(timeout_seconds=FIRST_WITHIN_SECONDS)
    wait_until(
        lambda: (
            held_by_each(operators, len(operators))
            and sum(many.seen(one).decided for one in operators) == many.resources
        ),
        what="each resource is decided by its shard",
        timeout_seconds=FIRST_WITHIN_SECONDS,
    )
    say("all decided")
    time.sleep(RESTARTED_TICKS * options.tick_seconds)
    began, others = time.monotonic(), cpu_seconds(many.rig)
    page_seconds = 0.5 * options.tick_seconds
    with ExitStack() as stack:
        watched = [
            stack.enter_context(Watched(one, page_seconds=page_seconds)) for one in operators
        ]
        time.sleep(60.0 * options.minutes)
        peaks = [one.peak_mebibytes for one in watched]
    cpu = [sorted(one.cpu_seconds) for one in watched]
    figures = ShardFigures(
        resources=many.resources,
        pods=many.pods,
        decided=[many.seen(one).decided for one in operators],
        ticks=[len(one.tick_seconds) for one in watched],
        tick_median_seconds=[median(one.tick_seconds) for one in watched],
        tick_worst_seconds=[max(one.tick_seconds) for one in watched],
        tick_cpu_median_seconds=[median(used) for used in cpu],
        tick_cpu_p99_seconds=[used[int(0.99 * len(used))] for used in cpu],
        peak_mebibytes=peaks,
        prometheus_cores=(alone[0], cores(many.rig, others, time.monotonic() - began)[0]),
        api_server_cores=(alone[1], cores(many.rig, others, time.monotonic() - began)[1]),
        load_average=os.getloadavg()[1],
    )
    for one in operators:
        one.stop()
    return figures


def main() -> None:
    """Measure each number of resources, and print the rows as JSON."""
    found = parser(__doc__)
    found.add_argument("--shards", type=int, default=3)
    options = found.parse_args()
    for resources in options.resources:
        print_row(asdict(measure(options, resources, _watch)))


if __name__ == "__main__":
    main()
