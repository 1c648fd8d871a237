"""A world with a fallback behind the same route, and a route that takes every weight."""

from dataclasses import dataclass, field, replace

from tests.unit.policy_world import REPLICAS_ONLY, SCRAPE_AGE_SECONDS, TICK_SECONDS, Run, World

from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.features.degradation.share import (
    FORMER,
    ROUTE_WEIGHTS,
    SHARE,
    TARGETS,
    THOUSANDTHS,
    DegradationTargets,
    degradation_of,
)
from servingslo.policy.inputs import InForce, ReplicaTargets
from servingslo.policy.planner import plan
from servingslo.policy.routes import BACKEND, RULE, Elsewhere
from servingslo.runtimes.gateways import CountedWhen

ASKED = DegradationTargets(route="llama", fallback="small", max_share_ratio=0.5)
DEGRADING = replace(
    REPLICAS_ONLY,
    replicas=ReplicaTargets(minimum=1, maximum=3),
    elsewhere=Elsewhere(service="small"),
    features={TARGETS.name: ASKED},
)


def share_of(decision):
    """What is decided of the fallback's share."""
    return degradation_of(decision.knobs)


@dataclass
class SplitWorld(World):
    """What arrives is divided by the route's weights.

    offered: requests per second at a time, of both together. takes: requests per second that the
    fallback serves; beyond it, it refuses. answer_seconds: of the fallback. counted: the gateway
    has counters of the fallback.
    """

    offered: object = None
    takes: float = 1000.0
    answer_seconds: float = 2.0
    counted: bool = True
    share: float = 0.0
    here: int = 0
    there: float = 0.0
    refused: float = 0.0
    ended: float = 0.0
    ended_milliseconds: float = 0.0
    seen_seconds: float = 0.0

    def __post_init__(self):
        self.rate = lambda seconds: (1.0 - self.share) * self.offered(seconds)
        super().__post_init__()
        offer = self.service.offer

        def counted(**request):
            self.here += 1
            return offer(**request)

        self.service.offer = counted

    def observe(self, at):
        """The observation with what the gateway counts."""
        observation = super().observe(at)
        seconds = at - SCRAPE_AGE_SECONDS - self.seen_seconds
        self.seen_seconds += seconds
        rate = self.share * self.offered(self.seen_seconds)
        taken = min(rate, self.takes)
        self.there += rate * seconds
        self.refused += (rate - taken) * seconds
        self.ended += taken * seconds
        self.ended_milliseconds += 1000.0 * self.answer_seconds * taken * seconds
        whole = GatewayInstance(
            name="envoy",
            age_seconds=SCRAPE_AGE_SECONDS,
            requests_total=self.here + self.there,
            rejected_total=0.0,
            queued=0.0,
        )
        part = replace(
            whole,
            requests_total=self.there,
            failed_total=self.refused,
            ended_total=self.ended,
            ended_milliseconds_total=self.ended_milliseconds,
        )
        # A backend of weight 0 has no cluster.
        shown = self.counted and self.share > 0.0
        return replace(
            observation,
            gateway=GatewaySample(counted=CountedWhen.PASSED_ON, instances=(whole,)),
            fallback=GatewaySample(counted=CountedWhen.PASSED_ON, instances=(part,))
            if shown
            else None,
        )


@dataclass
class DegradedRun(Run):
    """A world whose route takes every weight. refused: why it may not be changed."""

    refused: object = None
    shares: list = field(default_factory=list)

    @property
    def standing(self):
        """The values of the route now."""
        ours = {FORMER: 1} if self.world.share else {}
        values = {RULE: 0, BACKEND: 1, SHARE: round(THOUSANDTHS * self.world.share), **ours}
        return InForce(values=values, refused=self.refused)

    def tick(self):
        """One tick: observe, decide, act, the weights included."""
        at = self.world.now + TICK_SECONDS
        observation = replace(self.world.observe(at), in_force={ROUTE_WEIGHTS: self.standing})
        decision, self.state = plan(observation, self.targets, self.limits, self.state, at)
        self.decisions.append(decision)
        self.observations.append(observation)
        if decision.apply_replicas:
            self.world.scale(decision.replicas_after)
        decided = share_of(decision)
        if decided is not None and decided.change_reason is not None:
            self.world.share = 0.0 if decided.puts_back else decided.after
        self.shares.append(self.world.share)
        return decision

    def share_at(self, seconds):
        """The share in force after the tick at this time."""
        places = [n for n, d in enumerate(self.decisions) if d.time_seconds <= seconds]
        return self.shares[places[-1]]
