"""Twelve loads of a real Triton, beside the queueing law and the simulator.

    python -m tests.validation.triton_points [--out docs/lab/triton.md] [--requests 2000]

The points stand in POINTS and were fixed before the first run. Each is a model of the server that
sleeps for what its law says; clients are Poisson, send whether answers come or not, and count a
time from when a request was to be sent. Ends with 1 where p50 and p95 are both within 10 % of the
law in fewer than ten points.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

from servingslo.models.engine.service_time import (
    DynamicBatcher,
    EngineLimits,
    FloatArray,
    ServiceLaw,
)
from servingslo.models.waits.dynamic_batches import BatchTimes, saturation_per_second
from servingslo.policy.inputs import Observation
from servingslo.rig.processes import ProcessFamily
from servingslo.rig.triton import TritonModel, TritonServer, affine
from servingslo.sim import layout
from servingslo.sim.backend import compiled_backend
from servingslo.sim.cluster import Wanted, simulate
from servingslo.sim.fleet import ColdStart, DynamicBatching, FleetSpec
from servingslo.sim.trace import Trace

LAW = ServiceLaw(
    step_fixed_seconds=0.3, step_per_sequence_seconds=0.05, prefill_per_token_seconds=0.0
)
# At a time, so that clients and servers do not fight for the processor.
AT_ONCE = 6
WITHIN, LEAST_WITHIN = 0.10, 10
SIMULATED = 40_000


@dataclass(frozen=True, slots=True)
class Point:
    """A load: requests per second, and how batches form."""

    rate_per_second: float
    batcher: DynamicBatcher

    @property
    def utilization(self) -> float:
        """Of full batches."""
        return self.rate_per_second / saturation_per_second(LAW, self.batcher)


def _point(rate: float, window_ms: float, size: int, room: int, instances: int) -> Point:
    return Point(
        rate,
        DynamicBatcher(
            largest_batch=size, window_seconds=window_ms / 1e3, room=room, instances=instances
        ),
    )


# Rate, window in ms, largest batch, room (0: any number), instances.
POINTS = (
    _point(2.0, 0, 8, 0, 1),
    _point(5.75, 0, 8, 0, 1),
    _point(9.0, 0, 8, 0, 1),
    _point(4.0, 200, 8, 0, 1),
    _point(8.0, 200, 8, 0, 1),
    _point(10.0, 100, 16, 0, 1),
    _point(5.5, 100, 4, 0, 1),
    _point(6.0, 0, 8, 0, 2),
    _point(15.0, 200, 8, 0, 2),
    _point(20.0, 100, 8, 0, 2),
    _point(10.0, 100, 8, 16, 1),
    _point(11.0, 200, 8, 8, 1),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Sorted seconds of requests that were answered, and the share that was refused."""

    seconds: FloatArray
    lost_ratio: float

    def percentile(self, percent: float) -> float:
        """In seconds."""
        return float(np.percentile(self.seconds, percent))

    def interval(self, percent: float) -> tuple[float, float]:
        """Where the percentile of so many requests lies with 95 %, by order statistics."""
        count, share = len(self.seconds), percent / 100.0
        half = 1.96 * (count * share * (1.0 - share)) ** 0.5
        low, high = int(count * share - half), int(count * share + half + 1.0)
        return float(self.seconds[max(low, 0)]), float(self.seconds[min(high, count - 1)])


def model_of(index: int, point: Point) -> TritonModel:
    """The model of the server that a point is a load of."""
    size = point.batcher.largest_batch
    return TritonModel(
        name=f"point{index}",
        seconds=affine(LAW.step_fixed_seconds, LAW.step_per_sequence_seconds, size),
        window_microseconds=round(point.batcher.window_seconds * 1e6),
        queue_size=point.batcher.room,
        instances=point.batcher.instances,
    )


async def measured(url: str, name: str, rate: float, count: int, seed: int) -> Seen:
    """Answers of a model to Poisson clients."""
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    body = json.dumps({"inputs": [tensor]})
    moments = np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))
    began = time.monotonic() + 1.0
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(moment: float) -> tuple[float, bool]:
            await asyncio.sleep(max(began + moment - time.monotonic(), 0.0))
            async with session.post(f"{url}/v2/models/{name}/infer", data=body) as answer:
                await answer.read()
                return time.monotonic() - began - moment, answer.status == 200

        found = await asyncio.gather(*(ask(float(moment)) for moment in moments))
    answered = np.sort([seconds for seconds, served in found if served])
    return Seen(answered, 1.0 - len(answered) / count)


async def all_measured(server: TritonServer, count: int) -> list[Seen]:
    """Every point, a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, point: Point) -> Seen:
        async with gate:
            rate, name = point.rate_per_second, model_of(index, point).name
            return await measured(server.url, name, rate, count, index)

    return await asyncio.gather(*(one(*pair) for pair in enumerate(POINTS)))


class _OneReplica:
    def decide(self, observation: Observation) -> Wanted:
        """Nothing else."""
        del observation
        return Wanted()


def simulated(point: Point) -> Seen:
    """The same load in the simulator; its bound is on what waits and runs together."""
    batcher = point.batcher
    moments = np.cumsum(
        np.random.default_rng(99).exponential(1.0 / point.rate_per_second, SIMULATED)
    )
    trace = Trace(
        arrival_seconds=moments,
        prompt_tokens=np.ones(SIMULATED, dtype=int),
        output_tokens=np.ones(SIMULATED, dtype=int),
        duration_seconds=float(moments[-1]) + 60.0,
    )
    room = batcher.room + batcher.largest_batch * batcher.instances
    spec = FleetSpec(
        engine="l4-small",
        law=LAW,
        limits=EngineLimits(
            max_num_seqs=batcher.largest_batch, max_num_batched_tokens=8192,
            kv_capacity_tokens=1024,
        ),
        dynamic_batching=DynamicBatching(
            instances=batcher.instances, max_queue_delay_seconds=batcher.window_seconds
        ),
        max_queued=room if batcher.room else None,
        cold_start=ColdStart(mean_seconds=30.0),
    )  # fmt: skip
    result = simulate(spec, trace, _OneReplica(), seed=0, backend=compiled_backend())
    lost = float((result.status == layout.REJECTED).mean())
    served = result.latency_seconds[np.isfinite(result.latency_seconds)]
    return Seen(np.sort(served), lost)


def predicted(point: Point, percents: tuple[float, ...]) -> tuple[list[float], float]:
    """Percentiles of what is served, and the share that is lost, by the law."""
    times = BatchTimes(LAW, point.batcher, point.rate_per_second)
    kept = 1.0 - times.lost_ratio
    found = [times.quantile(times.latency_seconds, kept * p / 100.0) for p in percents]
    return found, times.lost_ratio


def rows(seen: list[Seen]) -> tuple[list[str], int]:
    """The table's rows, and in how many p50 and p95 are within 10 %."""
    lines, good = [], 0
    for index, (point, real) in enumerate(zip(POINTS, seen, strict=True)):
        (p50, p95, p99), lost = predicted(point, (50.0, 95.0, 99.0))
        fake, batcher = simulated(point), point.batcher
        errors = [p50 / real.percentile(50) - 1.0, p95 / real.percentile(95) - 1.0]
        within = max(map(abs, errors)) <= WITHIN
        good += within
        low, high = real.interval(99)
        cells = (
            f"{index + 1}",
            f"{point.rate_per_second:g}",
            f"{batcher.window_seconds * 1e3:g}",
            f"{batcher.largest_batch}",
            f"{batcher.room or '-'}",
            f"{batcher.instances}",
            f"{point.utilization:.2f}",
            *(
                f"{1e3 * real.percentile(p):.0f} / {1e3 * law:.0f} / {1e3 * fake.percentile(p):.0f}"
                for p, law in ((50, p50), (95, p95))
            ),
            f"{100 * errors[0]:+.0f} % {100 * errors[1]:+.0f} %",
            f"{1e3 * low:.0f}-{1e3 * high:.0f} / {1e3 * p99:.0f} / {1e3 * fake.percentile(99):.0f}",
            f"{100 * real.lost_ratio:.1f} / {100 * lost:.1f} / {100 * fake.lost_ratio:.1f}",
            "yes" if within else "no",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines, good


HEAD = """# A real Triton beside the law of dynamic batches

`python -m tests.validation.triton_points` writes this page: one pass of {count} requests a point,
points fixed beforehand, a tritonserver 2.51 whose models sleep 300 ms + 50 ms for each request of a
batch, Poisson clients. Load of the machine (1 min average, {cores} cores) {before:.1f} before and
{after:.1f} after. Times in ms, real / law / simulator; p99 real as its 95 % interval; lost in %.
Room is `max_queue_size`; the law takes it as all that can wait, the simulator as that beside full
batches.

"""
COLUMNS = (
    "#", "per s", "window", "batch", "room", "instances", "utilization", "p50", "p95",
    "error of the law", "p99", "lost", "within 10 %",
)  # fmt: skip

# Of the first pass, which stands; it explains, and no figure was worked on again.
FOOT = """
What is behind it. The law and the simulator, which has the same rules, agree; the server is
slower than both where a window meets load (points 5 to 7 and 10 to 12) and in the tail of point
3. Both let a batch that begins take all that wait. A simulation in which a request that comes
while every instance is busy joins the batch in line only after its own window gives 916 and
1,341 ms at point 5, 1,034 and 1,551 at 6, 729 and 1,174 at 7: a third to a half of what is
missing. The rest is taken to be the machine, whose two cores were busy with other work
throughout; that was not measured. Server and clients ran at a raised priority. A trial of 40
requests a point came before, after which service times and windows were doubled and rates halved.
"""


def main(argv: list[str] | None = None) -> int:
    """Measure, compare, write; the last line says how many points are within 10 %."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, help="page to write; by default the terminal alone")
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args(argv)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        family = ProcessFamily(work_dir=Path(scratch), remove_work_dir=False)
        try:
            server = TritonServer(
                work_dir=Path(scratch),
                family=family,
                models=[model_of(*pair) for pair in enumerate(POINTS)],
            )
            server.start()
            seen = asyncio.run(all_measured(server, options.requests))
        finally:
            family.stop()
    table, good = rows(seen)
    closing = f"{good} of {len(POINTS)} points: p50 and p95 of the law within 10 % of a real Triton"
    head = HEAD.format(
        count=options.requests, cores=os.cpu_count(), before=before, after=os.getloadavg()[0]
    )
    columns = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    page = head + columns + "\n".join(table) + f"\n\n{closing}.\n{FOOT}"
    if options.out is not None:
        options.out.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{page}\n{closing}\n")
    return 0 if good >= LEAST_WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
