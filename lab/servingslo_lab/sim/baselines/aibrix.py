"""AIBrix: its own pod autoscalers, APA and KPA.

Both run every 10 s; here every 15 s, the simulator's tick.
Source: vllm-project/aibrix pkg/controller/podautoscaler/{algorithm,scaler}, defaults of v0.4.
"""

import math
from collections.abc import Callable

from servingslo.estimation.sample import EngineSample
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import Scrape, View
from servingslo_lab.sim.fleets.cluster import Wanted

APA_DEFAULTS = {"kv_usage": 0.5, "window_seconds": 180.0, "up_tolerance": 0.1,
                "down_tolerance": 0.1}  # fmt: skip
APA_GRID = {"kv_usage": (0.15, 0.2, 0.3, 0.4, 0.5), "window_seconds": (60.0, 180.0)}
KPA_DEFAULTS = {"in_system": 100.0, "stable_seconds": 180.0, "panic_seconds": 60.0,
                "panic_threshold": 2.0}  # fmt: skip
KPA_GRID = {"in_system": (30.0, 40.0, 50.0, 70.0, 100.0), "stable_seconds": (180.0, 600.0)}
_DOWN_WINDOW_SECONDS = 300.0
_LARGEST_RISE, _LARGEST_FALL = 2.0, 2.0


def _pod_mean(read: Callable[[EngineSample], float | None]) -> Callable[[Scrape], float | None]:
    def mean(scrape: Scrape) -> float | None:
        values = scrape.values(read)
        return sum(values.values()) / len(values) if values else None

    return mean


def apa_replicas(ratio: float, count: int, *, up: float, down: float) -> int:
    """APA's replica count for a metric at `ratio` of its target: at most twice, at least half."""
    if ratio > 1.0 + up:
        return min(math.ceil(count * ratio - 1e-9), math.ceil(_LARGEST_RISE * count))
    if ratio < 1.0 - down:
        return max(math.ceil(count * ratio - 1e-9), math.floor(count / _LARGEST_FALL))
    return count


class APA:
    """KV use averaged over pods and window.

    A scale-down uses the least recommendation of the last five minutes, so the window that should
    delay it never does.
    """

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()
        self._wanted: list[tuple[float, int]] = []

    def decide(self, observation: Observation) -> Wanted:
        """The count by the ratio of KV use to its target."""
        seen = self._view.add(observation)
        mean = self._view.mean(_pod_mean(view.kv_usage), self._parameters["window_seconds"])
        if mean is None:
            return Wanted()
        now, current = seen.time_seconds, max(seen.replicas, 1)
        wanted = apa_replicas(
            mean / self._parameters["kv_usage"], current,
            up=self._parameters["up_tolerance"], down=self._parameters["down_tolerance"],
        )  # fmt: skip
        self._wanted.append((now, wanted))
        self._wanted = [(at, n) for at, n in self._wanted if now - at <= _DOWN_WINDOW_SECONDS]
        if wanted < current:
            wanted = min(n for _, n in self._wanted)
        return Wanted(replicas=self._setting.clamped(wanted))


class KPA:
    """Total of requests in the system over a target, with a stable and a panic window.

    Its formula does not multiply by the number of pods although pod metrics are averaged. So it
    gets the total, which fits the formula.
    """

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()
        self._panic_since: float | None = None
        self._panic_count = 0

    def decide(self, observation: Observation) -> Wanted:
        """The count of the stable window, in panic never fewer than before."""
        seen = self._view.add(observation)
        stable = self._view.mean(_total, self._parameters["stable_seconds"])
        panic = self._view.mean(_total, self._parameters["panic_seconds"])
        if stable is None or panic is None:
            return Wanted()
        target, now = self._parameters["in_system"], seen.time_seconds
        wanted = math.ceil(stable / target)
        panicking = math.ceil(panic / target)
        if stable > 0 and panic / stable > self._parameters["panic_threshold"]:
            self._panic_since = now
        elif (
            self._panic_since is not None
            and now - self._panic_since >= self._parameters["stable_seconds"]
        ):
            self._panic_since = None
            self._panic_count = 0
        if self._panic_since is not None:
            self._panic_count = max(self._panic_count, panicking, seen.replicas)
            wanted = self._panic_count
        return Wanted(replicas=self._setting.clamped(wanted))


def _total(scrape: Scrape) -> float | None:
    values = scrape.values(view.in_system)
    return sum(values.values()) if values else None
