"""Stories by their seeds, each printed by the command that lives it again where something is wrong.

    python -m tests.chaos.run --seeds 0:1667 [--faults 60] [--only page,killed] [--processes 2]

Ends with 1 where an invariant did not hold. The last line has the figures.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.chaos.checker import violations
from tests.chaos.faults import FAMILIES, KINDS
from tests.chaos.shared import KINDS as GATEWAYS
from tests.chaos.shared import GatewayStory
from tests.chaos.story import FAULTS, Story, Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one seed."""

    seed: int
    faults: int
    ticks: int
    writes: int
    wrong: tuple[str, ...]


def lived(
    seed: int,
    faults: int = FAULTS,
    only: tuple[str, ...] = (),
    *,
    pools: bool = False,
    gateway: str = "",
) -> tuple[Told, Result]:
    """Live a story: its record, and what was wrong with it.

    pools: of prefill and decode. gateway: with 'classes' or 'degradation'; '' without.
    """
    if gateway:
        story: Story = GatewayStory(seed, faults, only, kind=gateway)
    else:
        story = Story(seed, faults, only, pools=pools)
    told = story.run()
    result = Result(
        seed=seed,
        faults=len(told.faults),
        ticks=told.ticks,
        writes=len(told.writes),
        wrong=(*violations(told), *story.broken),
    )
    return told, result


def again(
    seed: int, faults: int, only: tuple[str, ...], *, pools: bool = False, gateway: str = ""
) -> str:
    """The command that lives a story again."""
    more = f" ONLY={','.join(only)}" if only else ""
    more += f" GATEWAY={gateway}" if gateway else ""
    return f"make chaos SEED={seed} FAULTS={faults}{more}{' POOLS=1' if pools else ''}"


def _result(job: tuple[int, int, tuple[str, ...], bool, str]) -> Result:
    seed, faults, only, pools, gateway = job
    return lived(seed, faults, only, pools=pools, gateway=gateway)[1]


def _results(jobs: list, processes: int) -> Iterator[Result]:
    if processes <= 1:
        yield from map(_result, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_result, jobs, chunksize=4)


def _tell(told: Told) -> None:
    """A whole story: faults, log and writes."""
    print(*(f"{f.kind} from tick {f.start} for {f.ticks}" for f in told.faults), sep="\n")
    print(*(f"t={at:.1f} {level} {line}" for at, level, line in told.log), sep="\n")
    print(*(f"t={w.at:.1f} wrote {w.target} {w.before}->{w.after}" for w in told.writes), sep="\n")


def main() -> None:
    """Live the stories that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1667", help="first:end")
    parser.add_argument("--seed", type=int, help="One alone, told in full.")
    parser.add_argument("--faults", type=int, default=FAULTS, help="In each story.")
    parser.add_argument("--only", default="", help=f"Of {', '.join(FAMILIES)}, or kinds of them.")
    parser.add_argument("--pools", action="store_true", help="Prefill and decode.")
    parser.add_argument("--gateway", default="", choices=("", *GATEWAYS), help="What it writes.")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    only = tuple(filter(None, given.only.split(",")))
    if unknown := [name for name in only if name not in FAMILIES and name not in KINDS]:
        sys.exit(f"--only {given.only}: {unknown[0]} is no fault; known: {', '.join(KINDS)}")
    if given.seed is not None:
        told, result = lived(
            given.seed, given.faults, only, pools=given.pools, gateway=given.gateway
        )
        _tell(told)
        sys.exit("\n".join(result.wrong) if result.wrong else 0)
    first, end = (int(number) for number in given.seeds.split(":"))
    began = time.process_time(), time.monotonic()
    stories = faults = ticks = writes = wrong = 0
    jobs = [(seed, given.faults, only, given.pools, given.gateway) for seed in range(first, end)]
    for result in _results(jobs, given.processes):
        stories, faults, ticks = stories + 1, faults + result.faults, ticks + result.ticks
        writes += result.writes
        if result.wrong:
            wrong += 1
            told = again(result.seed, given.faults, only, pools=given.pools, gateway=given.gateway)
            print(f"seed {result.seed}: {told}")
            print(*(f"    {line}" for line in result.wrong), sep="\n", flush=True)
    minutes = (time.monotonic() - began[1]) / 60.0
    print(
        f"{faults} faults in {stories} stories of {ticks} ticks, {writes} writes, "
        f"{wrong} stories with violations, {minutes:.1f} minutes"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
