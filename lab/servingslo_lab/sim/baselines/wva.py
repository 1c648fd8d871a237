"""llm-d Workload Variant Autoscaler, saturation analyzers V1 and V2, for one variant.

Source: llm-d-incubation/workload-variant-autoscaler, internal/saturation (V1) and the saturation
analyzer V2 of its v0.9 documentation, with their default thresholds. Its loop of 30 s runs at every
second tick.
"""

import math
from collections import deque
from statistics import median

from servingslo.estimation.sample import EngineSample
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines import view
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import Scrape, View, served_lengths
from servingslo_lab.sim.fleets.cluster import Wanted

V1_DEFAULTS = {"kv_limit": 0.80, "queue_limit": 5.0, "kv_spare": 0.1, "queue_spare": 3.0}
V1_GRID = {"kv_limit": (0.3, 0.5, 0.8), "kv_spare": (0.05, 0.1, 0.2)}
V2_DEFAULTS = {"kv_limit": 0.80, "up": 0.85, "down": 0.70, "queue_limit": 5.0}
V2_GRID = {"kv_limit": (0.25, 0.35, 0.5, 0.8), "up": (0.7, 0.85), "down": (0.5, 0.6, 0.7)}
LOOP_SECONDS = 30.0
_PEAK_SECONDS, _LENGTH_SECONDS = 60.0, 300.0
_REMEMBERED = 10


class EverySecondTick:
    """Whether the loop of 30 s runs at this tick."""

    def __init__(self) -> None:
        self._last: float | None = None

    def due(self, now: float) -> bool:
        """True once in each loop interval."""
        if self._last is not None and now - self._last < LOOP_SECONDS:
            return False
        self._last = now
        return True


def v1_step(peaks: dict[str, tuple[float, float]], parameters: Parameters) -> int:
    """One more, one less or the same count, from (KV use, queue) peaks of each pod.

    Saturated pods do not count as spare capacity. A step down requires two other pods, and the same
    spare capacity after the load is spread over one pod less.
    """
    free = [
        (kv, queue)
        for kv, queue in peaks.values()
        if kv < parameters["kv_limit"] and queue < parameters["queue_limit"]
    ]
    if not peaks:
        return 0
    if not free:
        return 1
    kv_limit, queue_limit = parameters["kv_limit"], parameters["queue_limit"]
    spare_kv = sum(kv_limit - kv for kv, _ in free) / len(free)
    spare_queue = sum(queue_limit - queue for _, queue in free) / len(free)
    if spare_kv < parameters["kv_spare"] or spare_queue < parameters["queue_spare"]:
        return 1
    if len(free) < 2:
        return 0
    fewer = len(free) - 1
    kv_after = sum(kv for kv, _ in free) / fewer
    queue_after = sum(queue for _, queue in free) / fewer
    fits = (
        kv_limit - kv_after >= parameters["kv_spare"]
        and queue_limit - queue_after >= parameters["queue_spare"]
    )
    return -1 if fits else 0


class SaturationV1:
    """Spare capacity of unsaturated pods; one step at a time, none while pods start."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()
        self._loop = EverySecondTick()

    def decide(self, observation: Observation) -> Wanted:
        """One more, one less, or no change while the last step is not complete."""
        seen = self._view.add(observation)
        if not self._loop.due(seen.time_seconds) or seen.ready != seen.replicas:
            return Wanted()
        step = v1_step(self._peaks(seen), self._parameters)
        return Wanted(replicas=self._setting.clamped(seen.replicas + step))

    def _peaks(self, seen: Scrape) -> dict[str, tuple[float, float]]:
        peaks = dict.fromkeys(seen.engines, (0.0, 0.0))
        for scrape in self._view.within(_PEAK_SECONDS):
            kv, queue = scrape.values(view.kv_usage), scrape.values(view.waiting)
            for name, (most_kv, most_queue) in peaks.items():
                peaks[name] = (
                    max(most_kv, kv.get(name, 0.0)), max(most_queue, queue.get(name, 0.0))
                )  # fmt: skip
        return peaks


def tokens_in_use(engine: EngineSample) -> float:
    """Tokens of the KV cache in use."""
    return (engine.kv_usage_ratio or 0.0) * (engine.kv_capacity_tokens or 0.0)


class SaturationV2:
    """Demanded tokens divided by a pod's capacity, learned from pods with a queue."""

    def __init__(self, setting: Setting, parameters: Parameters) -> None:
        self._setting, self._parameters = setting, parameters
        self._view = View()
        self._loop = EverySecondTick()
        self._seen_full: dict[str, deque[float]] = {}

    def decide(self, observation: Observation) -> Wanted:
        """The count by required and by spare capacity."""
        seen = self._view.add(observation)
        lengths = served_lengths(self._view, _LENGTH_SECONDS)
        if lengths is None or not seen.engines or not self._loop.due(seen.time_seconds):
            return Wanted()
        prompt, output = lengths
        engines = seen.engines.values()
        capacity = median(self._capacity(engine, prompt, output) for engine in engines)
        demand = sum(tokens_in_use(e) + (e.waiting or 0.0) * prompt for e in engines)
        wanted = v2_replicas(
            demand, capacity, replicas=seen.replicas, ready=seen.ready,
            up=self._parameters["up"], down=self._parameters["down"],
        )  # fmt: skip
        return Wanted(replicas=self._setting.clamped(wanted))

    def _capacity(self, engine: EngineSample, prompt: float, output: float) -> float:
        """min(k1, k2): KV capacity within its limit, and the batch's capacity."""
        by_memory = self._parameters["kv_limit"] * (engine.kv_capacity_tokens or 0.0)
        kind = "short" if output < 100 else "medium" if output < 500 else "long"
        memory = self._seen_full.setdefault(kind, deque(maxlen=_REMEMBERED))
        if (engine.waiting or 0.0) >= self._parameters["queue_limit"]:
            memory.append(tokens_in_use(engine))
            return min(by_memory, memory[-1])
        if memory:
            return min(by_memory, sum(memory) / len(memory))
        budget, sequences = engine.max_num_batched_tokens, engine.max_num_seqs
        if budget is None or sequences is None:
            return by_memory
        batch = min(budget * output / (prompt + output), float(sequences))
        return min(by_memory, batch * (prompt + output / 2))


def v2_replicas(
    demand: float, capacity: float, *, replicas: int, ready: int, up: float, down: float
) -> int:
    """Replicas for a demand in tokens: more above `up` of all, fewer below `down` of the ready."""
    if capacity <= 0:
        return replicas
    required = max(0.0, demand / up - max(replicas, ready) * capacity)
    if required > 0:
        return replicas + math.ceil(required / capacity - 1e-9)
    spare = max(0.0, ready * capacity - demand / down)
    return replicas - math.floor(spare / capacity + 1e-9)
