"""All policies that can be simulated, by name: the planner, other autoscalers, schedules.

A policy is written `NAME`, `NAME:tuned` (its best settings, found by a search on other seeds and
stored in `baselines/tuned.yaml`) or `NAME:key=value,key=value`. A name that begins with `real:` is
another autoscaler's own code, which the user has installed; of the HPA it is the arithmetic,
written again.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import yaml

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.baselines import (
    aibrix,
    dynamo,
    hpa,
    keda,
    knative,
    ray_serve,
    simple,
    wva,
    wva_queueing,
)
from servingslo_lab.sim.baselines.setting import Parameters, Setting, merged
from servingslo_lab.sim.fleets.cluster import Autoscaler
from servingslo_lab.sim.fleets.fleet import FleetSpec
from servingslo_lab.sim.peers import aibrix as real_aibrix
from servingslo_lab.sim.peers import dynamo as real_dynamo
from servingslo_lab.sim.peers import hpa as real_hpa
from servingslo_lab.sim.peers import knative as real_knative

OURS, STATIC, ORACLE, FORESIGHT = "servingslo", "static", "oracle", "foresight"
EACH, RATIO, SINGLE, OPTIMUM = "servingslo-each", "ratio", "static-single", "optimum"
KNOBS, COLD = f"{OURS}+knobs", f"{OURS}+cold"
SIMPLE = "simple"
RATIO_RULE = "keda-slo"
"""The rule that scales decode under RATIO."""
TUNED = "tuned"
# Settings with these suffixes are times, margins and lower thresholds, so they may be zero. Others
# are divisors or counts.
_MAY_BE_ZERO = ("_seconds", "_tolerance", "_spare", "_down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A published rule: its default settings, and the grid for a search.

    tick_seconds, lag_seconds: its interval of observations and their age; None for the fleet's.
    sources: what its runs depend on in addition to this repository, for one that is real.
    """

    summary: str
    build: Callable[[Setting, Parameters], Autoscaler]
    defaults: Parameters
    grid: Mapping[str, tuple[float, ...]]
    tick_seconds: float | None = None
    lag_seconds: float | None = None
    sources: Callable[[], str] | None = None


def _dynamo(
    summary: str,
    build: Callable[[Setting, Parameters], Autoscaler],
    defaults: Parameters = real_dynamo.DEFAULTS,
    grid: Mapping[str, tuple[float, ...]] = real_dynamo.GRID,
) -> Rule:
    return Rule(
        summary=summary, build=build, defaults=defaults, grid=grid,
        tick_seconds=real_dynamo.TICK_SECONDS, lag_seconds=real_dynamo.LAG_SECONDS,
        sources=real_dynamo.sources,
    )  # fmt: skip


def _aibrix(
    summary: str,
    build: Callable[[Setting, Parameters], Autoscaler],
    defaults: Parameters,
    grid: Mapping[str, tuple[float, ...]],
) -> Rule:
    return Rule(
        summary=summary, build=build, defaults=defaults, grid=grid,
        tick_seconds=real_aibrix.TICK_SECONDS, lag_seconds=real_aibrix.LAG_SECONDS,
        sources=real_aibrix.sources,
    )  # fmt: skip


REAL = "real"
REAL_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        f"{REAL}:dynamo-sla": _dynamo("Dynamo's planner, both loops", real_dynamo.both),
        f"{REAL}:dynamo-load": _dynamo("Dynamo's planner, load loop", real_dynamo.load_alone),
        f"{REAL}:dynamo-throughput": _dynamo(
            "Dynamo's planner, throughput loop", real_dynamo.throughput_alone
        ),
        f"{REAL}:dynamo-thresholds": _dynamo(
            "Dynamo's planner, load loop on KV use", real_dynamo.thresholds,
            real_dynamo.THRESHOLD_DEFAULTS, real_dynamo.THRESHOLD_GRID,
        ),
        f"{REAL}:aibrix-apa": _aibrix(
            "AIBrix's APA on KV cache use",
            real_aibrix.apa, real_aibrix.APA_DEFAULTS, real_aibrix.APA_GRID,
        ),
        f"{REAL}:aibrix-kpa": _aibrix(
            "AIBrix's KPA on requests in the system",
            real_aibrix.kpa, real_aibrix.KPA_DEFAULTS, real_aibrix.KPA_GRID,
        ),
        f"{REAL}:knative-kpa": Rule(
            summary="Knative's autoscaler on requests in the system",
            build=real_knative.PodAutoscaler,
            defaults=real_knative.DEFAULTS, grid=real_knative.GRID,
            tick_seconds=real_knative.TICK_SECONDS, lag_seconds=real_knative.LAG_SECONDS,
            sources=real_knative.sources,
        ),
        f"{REAL}:hpa": Rule(
            summary="HPA v2 on requests in the system, behavior by recorded timelines",
            build=real_hpa.on_requests, defaults=real_hpa.DEFAULTS, grid=real_hpa.GRID,
        ),
    }
)  # fmt: skip
"""Other autoscalers' own code, and the HPA's arithmetic; some has to be installed or built."""


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "hpa-waiting": Rule(
            summary="HPA v2 on waiting requests per pod",
            build=hpa.on_waiting, defaults=hpa.WAITING_DEFAULTS, grid=hpa.WAITING_GRID,
        ),
        "hpa-kv": Rule(
            summary="HPA v2 on KV cache use",
            build=hpa.on_kv, defaults=hpa.KV_DEFAULTS, grid=hpa.KV_GRID,
        ),
        "hpa-both": Rule(
            summary="HPA v2 on waiting requests and KV cache use",
            build=hpa.on_both, defaults=hpa.BOTH_DEFAULTS, grid=hpa.BOTH_GRID,
        ),
        "hpa-busy": Rule(
            summary="HPA v2 on the share of time that engines compute",
            build=hpa.Busy, defaults=hpa.BUSY_DEFAULTS, grid=hpa.BUSY_GRID,
        ),
        "keda-guide": Rule(
            summary="KEDA on queue and running requests (llm-d guide)",
            build=keda.guide, defaults=keda.GUIDE_DEFAULTS, grid=keda.GUIDE_GRID,
        ),
        "keda-raw": Rule(
            summary="KEDA on KV use and waiting requests of vLLM",
            build=keda.raw, defaults=keda.RAW_DEFAULTS, grid=keda.RAW_GRID,
        ),
        "keda-slo": Rule(
            summary="KEDA with the SLO law of the llm-d guide",
            build=keda.SLOLaw, defaults=keda.LAW_DEFAULTS, grid=keda.LAW_GRID,
        ),
        "knative": Rule(
            summary="Knative Pod Autoscaler on concurrency",
            build=knative.PodAutoscaler, defaults=knative.DEFAULTS, grid=knative.GRID,
        ),
        "aibrix-apa": Rule(
            summary="AIBrix APA on KV cache use",
            build=aibrix.APA, defaults=aibrix.APA_DEFAULTS, grid=aibrix.APA_GRID,
        ),
        "aibrix-kpa": Rule(
            summary="AIBrix KPA on requests in the system",
            build=aibrix.KPA, defaults=aibrix.KPA_DEFAULTS, grid=aibrix.KPA_GRID,
        ),
        "wva-v1": Rule(
            summary="llm-d WVA, saturation V1",
            build=wva.SaturationV1, defaults=wva.V1_DEFAULTS, grid=wva.V1_GRID,
        ),
        "wva-v2": Rule(
            summary="llm-d WVA, saturation V2",
            build=wva.SaturationV2, defaults=wva.V2_DEFAULTS, grid=wva.V2_GRID,
        ),
        "wva-queueing": Rule(
            summary="llm-d WVA, queueing analyzer",
            build=wva_queueing.QueueingAnalyzer,
            defaults=wva_queueing.DEFAULTS, grid=wva_queueing.GRID,
        ),
        "dynamo-load": Rule(
            summary="Dynamo load loop on its SLA target, profile exact",
            build=dynamo.LoadLoop, defaults=dynamo.LOAD_DEFAULTS, grid=dynamo.LOAD_GRID,
        ),
        "dynamo-threshold": Rule(
            summary="Dynamo load loop on its default target, throughput",
            build=dynamo.ThresholdLoop,
            defaults=dynamo.THRESHOLD_DEFAULTS, grid=dynamo.THRESHOLD_GRID,
        ),
        "dynamo-throughput": Rule(
            summary="Dynamo throughput loop, profile exact",
            build=dynamo.ThroughputLoop,
            defaults=dynamo.THROUGHPUT_DEFAULTS, grid=dynamo.THROUGHPUT_GRID,
        ),
        "ray-serve": Rule(
            summary="Ray Serve on ongoing requests",
            build=ray_serve.RayServe, defaults=ray_serve.DEFAULTS, grid=ray_serve.GRID,
        ),
        SIMPLE: Rule(
            summary="a planner in one file: trend, its own errors, our laws on the exact card",
            build=simple.Simple, defaults=simple.DEFAULTS, grid=simple.GRID,
        ),
    }
)  # fmt: skip

OTHERS: Mapping[str, str] = MappingProxyType(
    {
        OURS: "the production planner, replicas only",
        KNOBS: "the production planner, with batch limits, and bounds that only the "
        "simulator enforces",
        COLD: "the production planner, told nothing of the time before the trace",
        EACH: "several pools: a production planner for each, as several ServingSLOs",
        RATIO: f"prefill and decode: decode by {RATIO_RULE}, prefill in a fixed ratio to it",
        STATIC: "the least constant count that meets the share, chosen in hindsight",
        SINGLE: "Combined pools: the cheapest constant count of one pool alone, in hindsight",
        OPTIMUM: "Combined pools: the cheapest schedule of an integer program that knows the trace",
        FORESIGHT: "knows the mean demand one cold start ahead, tuned in hindsight",
        ORACLE: "the clairvoyant oracle",
    }
)


# Policies that exist only for several pools, and all for several pools: of the rules those that can
# scale each pool from the load of its own engines. WVA and Dynamo have their own rules for pools,
# which are not implemented here.
ONLY_IN_POOLS = (EACH, RATIO, SINGLE, OPTIMUM)
IN_POOLS = (
    OURS, COLD, EACH, RATIO, STATIC, SINGLE, OPTIMUM,
    "hpa-waiting", "hpa-kv", "hpa-both", "hpa-busy",
    "keda-guide", "keda-raw", "keda-slo", "knative", "aibrix-apa", "aibrix-kpa", "ray-serve",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy with its settings. label: as the user wrote it."""

    label: str
    name: str
    parameters: Parameters = field(default_factory=dict)

    @property
    def in_hindsight(self) -> bool:
        """Whether it is derived from the trace itself."""
        return self.name in {STATIC, SINGLE, OPTIMUM, FORESIGHT, ORACLE}

    def rule(self, setting: Setting) -> Autoscaler:
        """A new autoscaler with this rule; only for names of RULES and REAL_RULES."""
        return rule_named(self.name).build(setting, self.parameters)

    def paced(self, fleet: FleetSpec) -> FleetSpec:
        """The fleet, observed as often and as freshly as this policy observes it."""
        rule = REAL_RULES.get(self.name)
        if rule is None or rule.tick_seconds is None or rule.lag_seconds is None:
            return fleet
        return replace(
            fleet, scrape_interval_seconds=rule.tick_seconds, scrape_lag_seconds=rule.lag_seconds
        )


def rule_named(name: str) -> Rule:
    """The rule of RULES or REAL_RULES."""
    return REAL_RULES[name] if name in REAL_RULES else RULES[name]


def is_ours(name: str) -> bool:
    """Whether it is our planner, with or without its other knobs."""
    return name.partition("+")[0] in {OURS, EACH}


def policy_of(text: str, *, tuned_for: str | None = None) -> Policy:
    """Parse a policy.

    tuned_for: name of the card for the settings of `:tuned`.
    Raises: InvalidInputError for a name or a setting that does not exist.
    """
    name, rest = _split(text)
    if name in OTHERS:
        if rest:
            raise InvalidInputError("policy", text, f"{name} without settings")
        return Policy(label=text, name=name)
    if name not in RULES and name not in REAL_RULES:
        raise InvalidInputError("policy", name, ", ".join((*OTHERS, *RULES, *REAL_RULES)))
    if rest == TUNED:
        return Policy(label=text, name=name, parameters=tuned_parameters(name, tuned_for))
    defaults = rule_named(name).defaults
    return Policy(label=text, name=name, parameters=merged(defaults, _settings(rest)))


def _split(text: str) -> tuple[str, str]:
    """Name and settings of a policy as it is written."""
    name, _, rest = text.partition(":")
    if name == REAL:
        peer, _, rest = rest.partition(":")
        name = f"{REAL}:{peer}"
    return name, rest


def summary_of(text: str) -> str | None:
    """What a policy is; None for one that does not exist."""
    name, _ = _split(text)
    if name in OTHERS:
        return OTHERS[name]
    return rule_named(name).summary if name in RULES or name in REAL_RULES else None


def tuned_parameters(name: str, card: str | None) -> Parameters:
    """The best settings that a search found for this rule on this card, over the defaults.

    Raises: InvalidInputError if there are none.
    """
    found = _tuned().get(card or "", {}).get(name)
    if found is None:
        raise InvalidInputError("policy", f"{name}:{TUNED}", f"settings for {card or 'a card'}")
    return merged(RULES[name].defaults, found)


@cache
def _tuned() -> Mapping[str, Mapping[str, Parameters]]:
    text = (files("servingslo_lab.sim.baselines") / "tuned.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text) or {}
    cards: Mapping[str, Mapping[str, Parameters]] = document.get("cards") or {}
    return cards


def _settings(text: str) -> dict[str, float]:
    chosen = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key.strip() in chosen:
            raise InvalidInputError("policy", part, "each setting once")
        try:
            number = float(value)
        except ValueError as error:
            raise InvalidInputError("policy", part, "name=number") from error
        least = "≥" if key.strip().endswith(_MAY_BE_ZERO) else ">"
        if not (number > 0 or (number == 0 and least == "≥")) or math.isinf(number):
            raise InvalidInputError(f"policy: {key.strip()}", value, f"numbers {least} 0")
        chosen[key.strip()] = number
    return chosen
