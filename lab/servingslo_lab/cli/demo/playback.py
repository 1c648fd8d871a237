"""The planner on the demo's traffic, simulated, while the rig is built for the first time.

A first build takes minutes in which nothing real can be shown. Meanwhile another process plays the
demo's traffic on simulated engines and prints each decision as the operator would log it. It ends
with the build, and with the program that started it: its standard input is closed then.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from servingslo.api.convert import targets_from_spec
from servingslo.cli.manifest import read_spec
from servingslo.explain.log_line import log_line, material_change
from servingslo.policy.decision import Decision
from servingslo.policy.inputs import Observation
from servingslo.units import SECONDS_PER_MINUTE, parse_duration_seconds
from servingslo_lab.rig.kubernetes.kwok import READY_DELAY_ANNOTATION
from servingslo_lab.rig.simulated.engine_pods import KIND_ANNOTATION
from servingslo_lab.rig.simulated.traffic import Surge, TrafficPlan
from servingslo_lab.sim.fleets.cluster import Wanted, simulate
from servingslo_lab.sim.fleets.fleet import ColdStart, FleetSpec
from servingslo_lab.sim.production import Production
from servingslo_lab.sim.replicas.backend import INTERPRETED

MARK = "[simulated]"
BEGIN = (
    f"{MARK} the rig is being built, once. Until it is ready: the planner on the demo's traffic, "
    "on simulated engines, five times as fast as the clock"
)
END = "==> the rig is built and the simulation ends: the demo begins, on a real control plane"
# A surge comes every minute and a half, and a reader can follow.
PACE_RATIO = 5.0
# The demo's traffic is repeated so often; at this pace the plan of six minutes lasts half an hour.
ROUNDS = 25
# The compilers come first; much lower, and they would leave nothing on a machine of two cores.
_NICENESS = 5


@contextmanager
def played(
    example: Path, tick_seconds: float, plan: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[None]:
    """Play the planner's decisions until the block ends.

    example: folder of a Deployment and its ServingSLO. plan: fields of a TrafficPlan. say: writes
    one line, from another thread.
    """
    given = {"example": str(example), "tick_seconds": tick_seconds, "plan": dict(plan)}
    ended = threading.Event()
    with subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Ctrl-C reaches this program alone, which then ends the other.
        start_new_session=True,
    ) as process:
        reader = threading.Thread(target=_repeat, args=(process.stdout or (), say, ended))
        try:
            say(BEGIN)
            reader.start()
            yield
        finally:
            ended.set()
            process.kill()
            if reader.ident is not None:
                reader.join()
    say(END)


def _repeat(lines: Iterable[str], say: Callable[[str], None], ended: threading.Event) -> None:
    for line in lines:
        if ended.is_set():
            return
        say(line.rstrip("\n"))


def play(
    example: Path,
    tick_seconds: float,
    plan: Mapping[str, Any],
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None],
) -> None:
    """Simulate the plan's traffic on the example's workload, and say what is new in each decision.

    pause: waits this many seconds, after each tick.
    """
    deployment = next(
        document
        for document in yaml.safe_load_all((example / "deployment.yaml").read_text())
        if document["kind"] == "Deployment"
    )
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    start_seconds = parse_duration_seconds(annotations[READY_DELAY_ANNOTATION])
    fleet = FleetSpec(
        engine=annotations[KIND_ANNOTATION],
        initial_replicas=deployment["spec"]["replicas"],
        cold_start=ColdStart(mean_seconds=start_seconds, variation_ratio=0.0),
        scrape_interval_seconds=tick_seconds,
        scrape_lag_seconds=0.0,
    )
    shown = _Shown(
        planner=Production(targets_from_spec(read_spec(example / "servingslo.yaml"))),
        namespace=deployment["metadata"]["namespace"],
        name=deployment["metadata"]["name"],
        say=say,
        pause=lambda: pause(tick_seconds),
    )
    simulate(
        fleet,
        _repeated(plan).arrivals(),
        shown,
        seed=0,
        # numba would compile for the first half minute, next to the other compilers.
        backend=INTERPRETED,
    )


def _repeated(plan: Mapping[str, Any]) -> TrafficPlan:
    once = float(plan["duration_seconds"])
    surges = [
        Surge(
            factor=surge["factor"],
            start_seconds=surge["start_seconds"] + round_ * once,
            end_seconds=surge["end_seconds"] + round_ * once,
        )
        for round_ in range(ROUNDS)
        for surge in plan["surges"]
    ]
    return TrafficPlan(
        name="playback",
        namespace="",
        selector={},
        trace=Path(plan["trace"]),
        scale=plan["scale"],
        start_seconds=plan["start_seconds"],
        duration_seconds=ROUNDS * once,
        surges=surges,
    )


@dataclass(slots=True, kw_only=True)
class _Shown:
    """The planner as an autoscaler whose decisions are shown, at a pace. last: the last shown."""

    planner: Production
    namespace: str
    name: str
    say: Callable[[str], None]
    pause: Callable[[], None]
    last: Decision | None = None

    def decide(self, observation: Observation) -> Wanted:
        """Return the planner's request, after a pause."""
        named = replace(observation, namespace=self.namespace, name=self.name)
        wanted = self.planner.decide(named)
        decision = self.planner.decisions.pop()
        if material_change(self.last, decision):
            minutes, seconds = divmod(int(observation.time_seconds), int(SECONDS_PER_MINUTE))
            self.say(f"{MARK} {minutes:02d}:{seconds:02d} {log_line(decision)}")
            self.last = decision
        self.pause()
        return wanted


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Play what the first argument describes, as JSON, at the pace of people."""
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    given = json.loads(arguments[0])
    play(
        Path(given["example"]),
        given["tick_seconds"],
        given["plan"],
        say=lambda line: print(line, flush=True),
        pause=lambda seconds: time.sleep(seconds / PACE_RATIO),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
