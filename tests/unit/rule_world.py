"""What rules of other autoscalers are shown in tests: a fleet in round numbers, look by look."""

from dataclasses import dataclass
from typing import Any

from servingslo.estimation.sample import EngineSample, HistogramSample, PodSample
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.policy.inputs import Observation
from servingslo_lab.sim.baselines.setting import Setting
from servingslo_lab.sim.policies import policy_of

TICK_SECONDS = 15.0
SETTING = Setting(
    maximum=50,
    ttft_seconds=1.0,
    tpot_seconds=0.05,
    law=ServiceLaw(
        step_fixed_seconds=0.01,
        step_per_sequence_seconds=0.001,
        prefill_per_token_seconds=1e-4,
        context_per_token_seconds=0.0,
    ),
    limits=EngineLimits(max_num_seqs=50, max_num_batched_tokens=2000, kv_capacity_tokens=15_000),
    cold_start_seconds=90.0,
)


def histogram(bounds: tuple[float, ...], counts: tuple[float, ...], total: float = 0.0) -> Any:
    """A cumulative histogram from counts between edges, the last beyond them."""
    cumulative = tuple(sum(counts[: place + 1]) for place in range(len(counts)))
    return HistogramSample(
        upper_bounds=(*bounds, float("inf")),
        cumulative_counts=cumulative,
        sum=total,
        count=cumulative[-1],
    )


@dataclass
class World:
    """A rule, and the time of its next look."""

    rule: Any
    now: float = 0.0
    tick_seconds: float = TICK_SECONDS

    def look(
        self, replicas: int, *, unready: int = 0, each: dict[str, Any] | None = None,
        engines: list[dict[str, Any]] | None = None,
    ) -> int:  # fmt: skip
        """The count that the rule wants; the present one where it wants nothing.

        each: what every ready engine shows; engines: one for each instead.
        """
        self.now += self.tick_seconds
        shown = engines if engines is not None else [each or {}] * (replicas - unready)
        pods = [
            PodSample(name=f"p{n}", ready=True, engines=(EngineSample(engine="0", **fields),))
            for n, fields in enumerate(shown)
        ]
        pods += [PodSample(name=f"new{n}") for n in range(unready)]
        wanted = self.rule.decide(
            Observation(
                time_seconds=self.now, namespace="a", name="b", desired_replicas=replicas,
                current_replicas=len(pods), pods=tuple(pods),
            )
        )  # fmt: skip
        return replicas if wanted.replicas is None else wanted.replicas


def world(policy: str) -> World:
    """A fresh rule."""
    return World(policy_of(policy).rule(SETTING))


def lengths(requests: float, prompt: float, output: float) -> dict[str, Any]:
    """Histograms of an engine that has served so many requests of these mean lengths."""
    counts = (requests, 0.0)
    return {
        "prompt_tokens": histogram((1e5,), counts, requests * prompt),
        "output_tokens": histogram((1e5,), counts, requests * output),
        "ttft_seconds": histogram((1e5,), counts, requests),
    }
