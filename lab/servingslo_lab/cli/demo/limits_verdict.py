"""What a change of batch limits did for a fleet's users, by their own records."""

from collections.abc import Sequence
from dataclasses import dataclass

from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo_lab.rig.simulated.http_clients import ClientRecord, Ending

# What `missed` looks at, for people.
CHECKED = (
    "objectives missed before and kept after the change",
    "one pod with other limits at a time",
    "the harmful change taken back",
    "replicas unchanged",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Share of the requests of a time that kept each objective, by its key; and how many."""

    requests: int
    within: dict[str, float]

    def kept(self, objectives: Sequence[Objective]) -> bool:
        """Whether each objective held at its percentile."""
        return all(100.0 * self.within[o.key] >= o.percentile for o in objectives)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsFigures:
    """One fleet.

    bad: its change was to be taken back. ended: why the canary ended, '' where it did not.
    limits_before, limits_after: of the template. same_template: it is to the letter what it was.
    most_new_pods: with other limits at once while the canary stood. replicas: asked for, all along.
    """

    name: str
    objectives: tuple[Objective, ...]
    bad: bool
    ended: str
    limits_before: str
    limits_after: str
    same_template: bool
    most_new_pods: int
    replicas: tuple[int, ...]
    before: Shares | None = None
    after: Shares | None = None


def shares_of(
    records: Sequence[ClientRecord], objectives: Sequence[Objective], begin: float, end: float
) -> Shares | None:
    """Of the requests that came from begin to end, seconds; None where there were none."""
    came = [one for one in records if begin <= one.arrival_seconds < end]
    if not came:
        return None
    within = {o.key: sum(_within(one, o) for one in came) / len(came) for o in objectives}
    return Shares(requests=len(came), within=within)


def missed(figures: LimitsFigures) -> tuple[str, ...]:
    """What this fleet did not show; nothing where all went as it should."""
    found = []
    before, after = figures.before, figures.after
    if figures.most_new_pods > 1:
        found.append(f"{figures.most_new_pods} pods had other limits before the verdict")
    if len(set(figures.replicas)) != 1:
        found.append(f"replicas were {sorted(set(figures.replicas))}")
    if figures.bad:
        if not figures.same_template or figures.ended != "BatchingRolledBack":
            found.append(f"the change was not taken back to the letter ({figures.ended or 'none'})")
        return tuple(f"{figures.name}: {one}" for one in found)
    if figures.ended != "BatchingChanged":
        found.append(f"no other limits reached all pods ({figures.ended or 'no end'})")
    if before is None or before.kept(figures.objectives):
        found.append("the objectives held before, so nothing is shown")
    if after is None or not after.kept(figures.objectives):
        found.append("an objective is missed after")
    return tuple(f"{figures.name}: {one}" for one in found)


def table(fleets: Sequence[LimitsFigures]) -> str:
    """The figures for people, one column for each fleet."""
    rows: list[tuple[str, list[str]]] = [
        ("fleet", [one.name for one in fleets]),
        ("limits before", [one.limits_before for one in fleets]),
        ("limits after", [one.limits_after for one in fleets]),
        ("canary ended", [one.ended or "not" for one in fleets]),
        ("replicas", [", ".join(map(str, sorted(set(one.replicas)))) for one in fleets]),
        ("new pods at once", [str(one.most_new_pods) for one in fleets]),
        ("template as before", ["yes" if one.same_template else "no" for one in fleets]),
        ("before, requests", [_requests(one.before) for one in fleets]),
        *_rows("before", [(one, one.before) for one in fleets]),
        ("after, requests", [_requests(one.after) for one in fleets]),
        *_rows("after", [(one, one.after) for one in fleets]),
    ]
    return "\n".join(f"{name:<20}" + "".join(f"{cell:>22}" for cell in row) for name, row in rows)


def _rows(
    when: str, fleets: Sequence[tuple[LimitsFigures, Shares | None]]
) -> list[tuple[str, list[str]]]:
    metrics = dict.fromkeys(o.metric for one, _ in fleets for o in one.objectives)
    return [(f"{when}, {m.value}", [_share(one, s, m) for one, s in fleets]) for m in metrics]


def _share(figures: LimitsFigures, shares: Shares | None, metric: LatencyMetric) -> str:
    objective = next((o for o in figures.objectives if o.metric is metric), None)
    if objective is None or shares is None:
        return "-"
    return f"{shares.within[objective.key]:.2%} of {objective.percentile:g}%"


def _requests(shares: Shares | None) -> str:
    return "-" if shares is None else str(shares.requests)


def _within(record: ClientRecord, objective: Objective) -> bool:
    """Whether the whole answer came, and within this objective; one token has no time per token."""
    if record.ending is not Ending.FINISHED or record.ttft_seconds is None:
        return False
    if objective.metric is LatencyMetric.TTFT:
        return record.ttft_seconds <= objective.threshold_seconds
    further = record.output_tokens - 1
    decode = record.seconds - record.ttft_seconds
    return further < 1 or decode <= further * objective.threshold_seconds
