"""A world whose requests are of two classes, behind a gateway that counts each."""

from dataclasses import dataclass, field, replace

from tests.unit.policy_world import REPLICAS_ONLY as TARGETS
from tests.unit.policy_world import Run, World, steady

from servingslo.estimation.gateway.classes import whole_sample
from servingslo.estimation.sample import GatewayInstance, GatewaySample
from servingslo.policy.inputs import AdmissionMode, InForce, Limits, ReplicaTargets, SignalProblem
from servingslo.policy.knobs.in_flight.gateway import FORMER, LIMIT
from servingslo.policy.planner import plan
from servingslo.policy.routes import LANES, ClassTargets
from servingslo.reasons import Reason
from servingslo.runtimes.gateways import CountedWhen

CHAT = ClassTargets(name="chat", route="chat", policy="chat", objectives=TARGETS.objectives)
JOB = replace(CHAT, name="job", priority=-10, route="job", policy="job-lane")
WITH = replace(TARGETS, classes=(CHAT, JOB), admission_mode=AdmissionMode.AUTO)
THREE = replace(WITH, replicas=ReplicaTargets(minimum=3, maximum=12))


@dataclass
class ClassRun(Run):
    """A world whose requests are of two classes by a fixed part, and whose lanes are written.

    job_part: of all arrivals. refused_per_second: of the job, on top. refusal: why no lane may be
    written. passed_by: of the job, in flight in addition to its lane; None: what the engines have.
    failed_per_second: answered with 5xx, by class. lost_at: a reading that Prometheus does not
    answer.
    """

    job_part: float = 0.5
    refused_per_second: dict = field(default_factory=dict)
    passed_by: float | None = None
    failed_per_second: dict = field(default_factory=dict)
    failed: dict = field(default_factory=dict)
    silent_from: float = 1e9
    lost_at: float | None = None
    refusal: SignalProblem | None = None
    standing: dict = field(default_factory=dict)
    totals: dict = field(default_factory=dict)

    def tick(self):
        """One tick: observe, decide, act, the lanes included."""
        at = self.world.now + 15.0
        observation = self.world.observe(at)
        in_system = sum(
            (engine.running or 0.0) + (engine.waiting or 0.0)
            for pod in observation.pods
            for engine in pod.engines
        )
        passed = len(self.world.records) + in_system
        classes = {}
        for name, part in (("chat", 1.0 - self.job_part), ("job", self.job_part)):
            refused = self.totals.get(name, 0.0) + 15.0 * self.refused_per_second.get(name, 0.0)
            self.totals[name] = refused
            failed = self.failed.get(name, 0.0) + 15.0 * self.failed_per_second.get(name, 0.0)
            self.failed[name] = failed
            active = in_system * part
            if name == "job" and self.passed_by is not None:
                active = (self.standing.get(name) or 0.0) + self.passed_by
            classes[name] = GatewaySample(
                counted=CountedWhen.PASSED_ON,
                instances=(
                    GatewayInstance(
                        name="proxy",
                        age_seconds=2.0,
                        requests_total=passed * part + refused,
                        rejected_total=refused,
                        queued=0.0,
                        active=active,
                        errors_total=failed,
                        aborted_total=0.0,
                    ),
                )
                if at < self.silent_from
                else (),
            )
        observation = replace(
            observation,
            classes=classes,
            gateway=whole_sample(classes.values()),
            in_force={LANES: InForce(values=self.values(), refused=self.refusal)},
        )
        if at == self.lost_at:
            lost = SignalProblem(reason=Reason.PROMETHEUS_UNAVAILABLE, detail="no answer")
            observation = replace(observation, pods=(), classes={}, gateway=None, problems=(lost,))
        decision, self.state = plan(observation, self.targets, self.limits, self.state, at)
        self.decisions.append(decision)
        self.observations.append(observation)
        if decision.apply_replicas:
            self.world.scale(decision.replicas_after)
        for knob in decision.knobs.values():
            self.standing |= knob.bounds
        return decision

    def values(self):
        """The bounds as the actuator finds them."""
        found = {}
        for name in ("chat", "job"):
            limit = self.standing.get(name)
            found[f"{name}.{LIMIT}"] = limit
            if limit is not None:
                found[f"{name}.{FORMER}"] = None
        return found


def story(targets=WITH, rate=8.0, replicas=3, **more):
    """Three replicas under this rate, half of it the job's."""
    return ClassRun(World(rate=steady(rate), replicas=replicas), targets, Limits(), **more)
