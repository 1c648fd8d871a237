"""NVIDIA Dynamo's planner, by the installed `ai-dynamo`: its decision core, which has no I/O.

Aggregated engines. With its SLA target: both loops, the load loop alone, the throughput loop alone.
Or thresholds of KV use; the default ones are those of its default target.
What its adapters would give it, it gets at the times at which they would: the last step of each
engine and the worker counts every 5 s, requests started and lengths every 180 s. It begins with its
own estimates for the card and the model (`ais_perf_model`) where its package has them, elsewhere
with an exact profile (`dynamo_profile`). Its targets are means, so `factor` scales the objectives.
Source: ai-dynamo 1.7.0.dev20261026, dynamo/planner/core/state_machine.py, core/perf_model, offline/
replay_adapter.py (worker counts, steps), plugins/builtins/local_planner.py (order of the loops).
"""

import importlib
import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from servingslo.errors import InvalidInputError
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines.setting import Parameters, Setting
from servingslo_lab.sim.baselines.view import View, served_lengths
from servingslo_lab.sim.fleets.cluster import Wanted
from servingslo_lab.sim.fleets.events import EngineStep, Events
from servingslo_lab.sim.peers.dynamo_profile import profiled_steps

DISTRIBUTIONS = ("ai-dynamo", "aisimulate")
TICK_SECONDS, LAG_SECONDS = 5.0, 0.0
"""load_adjustment_interval_seconds; engines push their steps, so nothing is old."""
DEFAULTS = {"factor": 1.0}
GRID = {"factor": (0.35, 0.5, 0.7, 0.85, 1.0)}
# _DECODE_THROUGHPUT_SCALE_UP and _DOWN of core/load_scaling.py.
THRESHOLD_DEFAULTS = {"up_percent": 100.0, "down_ratio": 0.6}
THRESHOLD_GRID = {"up_percent": (15.0, 20.0, 30.0, 40.0, 60.0, 100.0)}
# Systems and models of its package, by our kinds; it has no measured kernels of the others.
ESTIMATED = {
    "h100-llama-8b": ("h100_sxm", "meta-llama/Meta-Llama-3.1-8B"),
    "l40s-llama-8b": ("l40s", "meta-llama/Meta-Llama-3.1-8B"),
}
_MILLISECONDS = 1000.0
_UNBOUNDED = -1  # its default budget is 8 GPUs; the fleet's bound is applied to its decision


@cache
def planner() -> dict[str, Any]:
    """Its classes by name.

    Raises: InvalidInputError, with the reason, if this environment cannot import them.
    """
    found: dict[str, Any] = {}
    # Its modules set up the root logger on import and say much on each tick.
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        for module, names in (
            ("dynamo.planner.config.planner_config", ("PlannerConfig",)),
            ("dynamo.planner.core.load.predictors", ("LOAD_PREDICTORS",)),
            ("dynamo.planner.core.state_machine", ("PlannerScalingState",)),
            (
                "dynamo.planner.core.types",
                (
                    "EngineCapabilities", "FpmObservations", "TrafficObservation",
                    "WorkerCapabilities", "WorkerCounts",
                ),
            ),
            (
                "dynamo.common.forward_pass_metrics",
                ("ForwardPassMetrics", "QueuedRequestMetrics", "ScheduledRequestMetrics"),
            ),
        ):  # fmt: skip
            loaded = importlib.import_module(module)
            found |= {name: getattr(loaded, name) for name in names}
    except ImportError as error:
        allowed = f"an environment with ai-dynamo, see docs/benchmarks-peers.md ({error})"
        raise InvalidInputError("policy", "real:dynamo", allowed) from error
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    logging.getLogger("dynamo").setLevel(logging.ERROR)
    return found


def sources() -> str:
    """The installed versions; "none" without."""
    return " ".join(f"{name} {_version(name)}" for name in DISTRIBUTIONS)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def sla_config(setting: Setting, parameters: Parameters, *, load: bool, throughput: bool) -> Any:
    """Its configuration with latency targets; load, throughput: which loops run."""
    factor = parameters["factor"]
    return _config(
        setting,
        optimization_target="sla",
        ttft_ms=_MILLISECONDS * setting.ttft_seconds * factor,
        itl_ms=_MILLISECONDS * setting.tpot_seconds * factor,
        enable_load_scaling=load,
        enable_throughput_scaling=throughput,
    )


def threshold_config(setting: Setting, parameters: Parameters) -> Any:
    """Its configuration with thresholds of KV use, in percent."""
    up = parameters["up_percent"]
    return _config(
        setting,
        optimization_target="load",
        decode_scale_up_kv_rate=up,
        decode_scale_down_kv_rate=parameters["down_ratio"] * up,
        enable_throughput_scaling=False,
    )


def _config(setting: Setting, **chosen: object) -> Any:
    if setting.engine in ESTIMATED:
        system, model = ESTIMATED[setting.engine]
        role = {"model": model, "system": system, "backend": "vllm"}
        chosen["ais_perf_model"] = {"roles": {"aggregated": role}}
    return planner()["PlannerConfig"](
        mode="agg",
        environment="virtual",
        max_gpu_budget=_UNBOUNDED,
        min_endpoint=setting.minimum,
        **chosen,
    )


class Planner:
    """Its scaling state, configured, with the inputs of its adapters."""

    def __init__(self, setting: Setting, config: Any) -> None:
        self._setting, self._config = setting, config
        self._load, self._throughput = config.enable_load_scaling, config.enable_throughput_scaling
        self._types = planner()
        limits = setting.limits
        self._state = self._types["PlannerScalingState"](
            self._config,
            self._types["WorkerCapabilities"](
                decode=self._types["EngineCapabilities"](
                    num_gpu=1,
                    max_num_batched_tokens=limits.max_num_batched_tokens,
                    max_num_seqs=limits.max_num_seqs,
                    max_kv_tokens=int(limits.kv_capacity_tokens),
                    kv_cache_block_size=limits.kv_block_tokens,
                )
            ),
        )
        if setting.engine not in ESTIMATED:
            profile = profiled_steps(setting.law, limits)
            self._state.load_benchmark_fpms(
                agg_fpms=[self._metrics("profile", step) for step in profile]
            )
        predictor = self._types["LOAD_PREDICTORS"][self._config.load_predictor]
        self._predictors = [predictor(self._config) for _ in range(3)]
        self._view = View()
        self._events = Events(arrived=0, steps={})
        self._traffic_since: float | None = None
        self._arrived_before = 0

    def receive(self, events: Events) -> None:
        """Keep the newest steps and the count of requests started."""
        self._events = events

    def decide(self, observation: Observation) -> Wanted:
        """One tick of its pipeline: inventory, steps, throughput if due, then load."""
        self._view.add(observation)
        self._state.begin_tick()
        self._state.observe_worker_counts(self._counts(observation))
        steps = self._types["FpmObservations"](
            decode={(pod, 0): self._metrics(pod, step) for pod, step in self._events.steps.items()}
        )
        self._state.observe_fpm(steps)  # for the throughput loop too
        decision = self._throughput_decision(observation.time_seconds)
        if self._load:
            decision = self._state.advance_load(steps)
        if decision is None or decision.num_decode is None:
            return Wanted()
        return Wanted(replicas=self._setting.clamped(int(decision.num_decode)))

    def _counts(self, observation: Observation) -> Any:
        pods = [pod for pod in observation.pods if not pod.deleting]
        ready, wanted = sum(pod.ready for pod in pods), observation.desired_replicas or 0
        draining = len(pods) < len(observation.pods)
        return self._types["WorkerCounts"](
            ready_num_decode=ready,
            expected_num_decode=wanted,
            decode_scaling_in_progress=wanted != ready or draining,
            # Positive only for a start with no drain anywhere.
            pending_num_decode=0 if draining else max(wanted - ready, 0),
        )

    def _throughput_decision(self, now: float) -> Any:
        if not self._throughput:
            return None
        if self._traffic_since is None:
            self._traffic_since, self._arrived_before = now, self._events.arrived
            return None
        duration = now - self._traffic_since
        if duration < self._config.throughput_adjustment_interval_seconds:
            return None
        requests = self._events.arrived - self._arrived_before
        self._traffic_since, self._arrived_before = now, self._events.arrived
        lengths = served_lengths(self._view, duration)
        if lengths is None:
            return None
        predicted = []
        for predictor, value in zip(self._predictors, (float(requests), *lengths), strict=True):
            predictor.add_data_point(value)
            predicted.append(predictor.predict_next())
        return self._state.advance_throughput_from_prediction(
            self._types["TrafficObservation"](
                duration_s=duration, num_req=float(requests), isl=lengths[0], osl=lengths[1]
            ),
            predicted_num_req=predicted[0],
            predicted_isl=predicted[1],
            predicted_osl=predicted[2],
            predicted_kv_hit_rate=None,
        )

    def _metrics(self, pod: str, step: EngineStep) -> Any:
        """A step in its own form."""
        return self._types["ForwardPassMetrics"](
            worker_id=pod,
            wall_time=step.duration_seconds,
            scheduled_requests=self._types["ScheduledRequestMetrics"](
                num_prefill_requests=step.prefilling,
                sum_prefill_tokens=step.prefill_tokens,
                sum_prefill_kv_tokens=step.prefilled_tokens,
                num_decode_requests=step.decoding,
                sum_decode_kv_tokens=step.context_tokens,
            ),
            queued_requests=self._types["QueuedRequestMetrics"](
                num_prefill_requests=step.waiting,
                sum_prefill_tokens=step.waiting_tokens,
                num_decode_requests=step.preempted,
                sum_decode_kv_tokens=step.preempted_tokens,
            ),
        )


def both(setting: Setting, parameters: Parameters) -> Planner:
    """Both loops: throughput sets the least count, load decides."""
    return Planner(setting, sla_config(setting, parameters, load=True, throughput=True))


def load_alone(setting: Setting, parameters: Parameters) -> Planner:
    """The load loop."""
    return Planner(setting, sla_config(setting, parameters, load=True, throughput=False))


def throughput_alone(setting: Setting, parameters: Parameters) -> Planner:
    """The throughput loop."""
    return Planner(setting, sla_config(setting, parameters, load=False, throughput=True))


def thresholds(setting: Setting, parameters: Parameters) -> Planner:
    """The load loop on KV use, queued prompts included."""
    return Planner(setting, threshold_config(setting, parameters))
