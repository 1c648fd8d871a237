"""Predictions of one group of replicas, as tests ask for them."""

from dataclasses import dataclass

from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo.models.fleet.latency import latency_model
from servingslo.models.fleet.prediction import Prediction
from servingslo.models.objectives import Routing
from servingslo.models.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """replica_count identical replicas behind one router."""

    law: ServiceLaw
    limits: EngineLimits
    replica_count: int
    routing: Routing = Routing.POOLED


def predict(workload: Workload, group: ReplicaGroup) -> Prediction:
    """Prediction for this workload on this group."""
    model = latency_model(workload, group.law, group.limits)
    return model.predict(workload.arrival_rate_per_second, group.replica_count, group.routing)
