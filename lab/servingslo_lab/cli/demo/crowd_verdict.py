"""What a crowd did to fleets with and without admission, by their clients and Envoy's counters."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.units import SECONDS_PER_HOUR
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending

# Of the requests that are let in, the share that must meet the objectives.
LEAST_ADMITTED_IN_SLO_RATIO = 0.98
# Envoy and clients count the same events; a connection that broke may be on one side alone.
COUNTING_TOLERANCE_RATIO = 0.02
COUNTING_TOLERANCE_REQUESTS = 5
# Replica-hours are read once a second.
COST_TOLERANCE_RATIO = 0.01


# What `not_enforced` and `missed` look at, for people.
CHECKED = (
    "Envoy enforces the bound",
    f"{LEAST_ADMITTED_IN_SLO_RATIO:.0%} of what is let in meets the objectives",
    "more of all requests do than without a bound",
    "no more replica-hours",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """One fleet in the crowd.

    refused: requests whose last answer was a refusal; refusals: all such answers. overflows: what
    Envoy counts as beyond the bound, unserved: as without a pod. bounds: that were read from the
    policy, in order; empty where it never had one.
    """

    name: str
    requests: int
    admitted: int
    admitted_in_slo: int
    refused: int
    refusals: int
    broken: int
    overflows: int
    unserved: int
    replica_seconds: float
    bounds: tuple[int, ...] = ()

    @property
    def admitted_in_slo_ratio(self) -> float:
        """Share of the requests let in that met every objective."""
        return self.admitted_in_slo / self.admitted if self.admitted else 0.0

    @property
    def in_slo_ratio(self) -> float:
        """Share of all requests that were let in and met every objective."""
        return self.admitted_in_slo / self.requests if self.requests else 0.0


def figures_of(
    name: str,
    records: Sequence[ClientRecord],
    *,
    ttft_seconds: float,
    tpot_seconds: float,
    overflows: float,
    unserved: float,
    replica_seconds: float,
    bounds: Sequence[int] = (),
) -> ArmFigures:
    """The figures of one fleet, out of what its clients wrote down and Envoy counted."""
    refused = sum(one.ending is Ending.REFUSED for one in records)
    return ArmFigures(
        name=name,
        requests=len(records),
        admitted=len(records) - refused,
        admitted_in_slo=sum(one.meets(ttft_seconds, tpot_seconds) for one in records),
        refused=refused,
        refusals=sum(one.refusals for one in records),
        broken=sum(one.ending in {Ending.BROKEN, Ending.TIMED_OUT} for one in records),
        overflows=round(overflows),
        unserved=round(unserved),
        replica_seconds=replica_seconds,
        bounds=tuple(bounds),
    )


def not_enforced(with_bound: ArmFigures) -> str:
    """Why the run shows nothing of admission, for example since no bound reached Envoy; '' else."""
    if not with_bound.bounds:
        return "the operator wrote no bound into the policy"
    if not with_bound.overflows:
        bounds = f"{min(with_bound.bounds)} to {max(with_bound.bounds)}"
        return (
            f"the policy said {bounds} requests in flight and Envoy refused none: it never "
            "reached Envoy, or the crowd was too small for it"
        )
    counted = with_bound.overflows + with_bound.unserved
    room = COUNTING_TOLERANCE_REQUESTS + COUNTING_TOLERANCE_RATIO * counted
    if abs(with_bound.refusals - counted) > room:
        return (
            f"clients were refused {with_bound.refusals} times and Envoy counts {counted}: "
            "something else refuses"
        )
    return ""


def missed(without: ArmFigures, with_bound: ArmFigures) -> tuple[str, ...]:
    """Which of the promises of admission this run did not keep."""
    found = []
    if with_bound.admitted_in_slo_ratio < LEAST_ADMITTED_IN_SLO_RATIO:
        found.append(
            f"{with_bound.admitted_in_slo_ratio:.2%} of what was let in met the objectives, "
            f"{LEAST_ADMITTED_IN_SLO_RATIO:.0%} is promised"
        )
    if with_bound.in_slo_ratio <= without.in_slo_ratio:
        found.append(
            f"{with_bound.in_slo_ratio:.2%} of all requests met the objectives, "
            f"{without.in_slo_ratio:.2%} without a bound"
        )
    if with_bound.replica_seconds > (1.0 + COST_TOLERANCE_RATIO) * without.replica_seconds:
        found.append(
            f"{with_bound.replica_seconds / SECONDS_PER_HOUR:.3f} replica-hours, "
            f"{without.replica_seconds / SECONDS_PER_HOUR:.3f} without a bound"
        )
    return tuple(found)


def table(arms: Sequence[ArmFigures]) -> str:
    """The figures for people, one column for each fleet."""
    rows: list[tuple[str, list[str]]] = [
        ("admission", [arm.name for arm in arms]),
        ("requests", [str(arm.requests) for arm in arms]),
        ("let in", [str(arm.admitted) for arm in arms]),
        ("refused", [str(arm.refused) for arm in arms]),
        ("broken, timed out", [str(arm.broken) for arm in arms]),
        ("let in, in SLO", [f"{arm.admitted_in_slo_ratio:.2%}" for arm in arms]),
        ("of all, in SLO", [f"{arm.in_slo_ratio:.2%}" for arm in arms]),
        ("replica-hours", [f"{arm.replica_seconds / SECONDS_PER_HOUR:.3f}" for arm in arms]),
        ("Envoy: overflows", [str(arm.overflows) for arm in arms]),
        ("Envoy: no pod", [str(arm.unserved) for arm in arms]),
        ("bounds in policy", [_range(arm.bounds) for arm in arms]),
    ]
    return "\n".join(f"{name:<18}" + "".join(f"{cell:>14}" for cell in row) for name, row in rows)


def _range(bounds: Sequence[int]) -> str:
    return f"{min(bounds)} to {max(bounds)}" if bounds else "none"
