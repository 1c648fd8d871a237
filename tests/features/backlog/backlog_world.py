"""A world with live requests and a queue of work that a dispatcher sends at the leased rate."""

from dataclasses import dataclass, field, replace

from tests.unit.classed_world import CHAT, JOB
from tests.unit.policy_world import REPLICAS_ONLY, Run, World

from servingslo.estimation.gateway.classes import whole_sample
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.features.backlog.deadlines import (
    READING,
    TARGETS,
    BacklogReading,
    BacklogTargets,
    Deadline,
    Preset,
    Unit,
)
from servingslo.features.backlog.report import REPORT
from servingslo.policy.inputs import Limits, ReplicaTargets
from servingslo.policy.planner import plan
from servingslo.runtimes.gateways import CountedWhen

TICK = 15.0
CLASSED = replace(
    REPLICAS_ONLY, classes=(CHAT, JOB), replicas=ReplicaTargets(minimum=1, maximum=12)
)


def stated(within=3600.0, *, unit=Unit.REQUESTS, targets=CLASSED, on_time=0.99):
    """The targets with a backlog that is due so long after it arrived."""
    backlog = BacklogTargets(
        preset=Preset.RABBITMQ,
        queue="night",
        unit=unit,
        deadline=Deadline(within_seconds=within),
        on_time_ratio=on_time,
    )
    return replace(targets, features={TARGETS.name: backlog})


@dataclass
class BacklogRun(Run):
    """live: its rate at a time. arrivals: of work, by the time at which it comes, in requests.

    waiting: [arrived, requests] of what is in the queue, oldest first. done: (arrived, sent,
    requests). sends: whether a dispatcher sends any. silent: nothing exports the length. counted:
    the classes that the gateway counts.
    """

    live: object = None
    arrivals: dict = field(default_factory=dict)
    waiting: list = field(default_factory=list)
    done: list = field(default_factory=list)
    sends: bool = True
    silent: bool = False
    counted: tuple = ("chat", "job")
    job_per_second: float = 0.0
    counts: dict = field(default_factory=lambda: {"chat": 0.0, "job": 0.0})
    replica_seconds: float = 0.0

    def __post_init__(self):
        self.world.rate = lambda at: self.live(at) + self.job_per_second

    def left(self):
        """Requests in the queue."""
        return sum(one[1] for one in self.waiting)

    def tick(self):
        """One tick: the dispatcher sends, then the planner observes, decides and acts."""
        begin, at = self.world.now, self.world.now + TICK
        for when in [one for one in self.arrivals if one <= begin]:
            self.waiting.append([when, self.arrivals.pop(when)])
        self._send(begin)
        observation = self.world.observe(at)
        self.replica_seconds += TICK * len(self.world.pods)
        in_system = sum(
            (e.running or 0) + (e.waiting or 0) for p in observation.pods for e in p.engines
        )
        passed = len(self.world.records) + in_system - sum(self.counts.values())
        live = self.live(begin + TICK / 2)
        part = self.job_per_second / max(live + self.job_per_second, 1e-9)
        for name, ratio in (("chat", 1.0 - part), ("job", part)):
            self.counts[name] += max(passed, 0.0) * ratio
        classes = {
            name: GatewaySample(
                counted=CountedWhen.PASSED_ON,
                instances=(
                    GatewayInstance(
                        name="proxy", age_seconds=2.0, requests_total=count, rejected_total=0.0,
                        queued=0.0, active=in_system * (part if name == "job" else 1.0 - part),
                        errors_total=0.0, aborted_total=0.0,
                    ),
                ) if name in self.counted else (),
            )
            for name, count in self.counts.items()
        }  # fmt: skip
        length = None if self.silent else self.left()
        observation = replace(
            observation,
            classes=classes,
            gateway=whole_sample(classes.values()),
            features={READING.name: BacklogReading(time_seconds=at, left=length)},
        )
        decision, self.state = plan(observation, self.targets, self.limits, self.state, at)
        self.decisions.append(decision)
        self.observations.append(observation)
        if decision.apply_replicas:
            self.world.scale(decision.replicas_after)
        return decision

    def _send(self, begin):
        """What the last rate allows of the queue goes in this tick."""
        report = REPORT.of(self.decisions[-1].features) if self.decisions else None
        rate = report.rate_per_second if report is not None and self.sends else 0.0
        self.job_per_second = min(rate, self.left() / TICK)
        sent = self.job_per_second * TICK
        while sent > 1e-9 and self.waiting:
            part = min(sent, self.waiting[0][1])
            self.done.append((self.waiting[0][0], begin + TICK, part))
            self.waiting[0][1] -= part
            sent -= part
            if self.waiting[0][1] <= 1e-9:
                self.waiting.pop(0)


def story(live, arrivals=None, targets=None, replicas=2, **more):
    """Live requests at this rate, and work that arrives at these times."""
    return BacklogRun(
        World(rate=live, replicas=replicas),
        stated() if targets is None else targets,
        Limits(),
        live=live,
        arrivals=dict(arrivals or {}),
        **more,
    )
