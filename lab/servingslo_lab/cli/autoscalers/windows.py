"""`replicas.schedule` from KEDA's cron triggers and AIBrix's schedules.

Source: KEDA v2.21 pkg/scalers/cron_scaler.go: at least desiredReplicas while the next end comes
before the next start. AIBrix api/autoscaling/v1alpha1, PodAutoscalerSchedule: its bounds instead of
the usual ones from startTime to endTime of a day.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import islice, pairwise
from typing import Any

from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from servingslo.api.refusals import first_refusal
from servingslo.api.v1alpha1.capacity import Replicas
from servingslo.units import SECONDS_PER_DAY, format_duration

FIELD = "schedule"
# Starts whose windows are compared: those of each day of more than a year.
_COMPARED = 400
_FIRST = datetime(2024, 1, 1)  # noqa: DTZ001 - local time of any zone


def plain(cron: str) -> str:
    """A cron of KEDA as the API has it: single blanks, `*` for `?`."""
    return " ".join(cron.replace("?", "*").split())


def duration_seconds(start: str, end: str) -> tuple[float | None, str]:
    """The time from each start to the next end by local time, if it is the same each time.

    Else None, and why.
    """
    if start == end:
        return None, "KEDA refuses it: start and end are equal"
    try:
        starts = [*islice(CronSim(start, _FIRST), _COMPARED)]
        lengths = [next(CronSim(end, begin)) - begin for begin in starts]
    except (CronSimError, StopIteration):
        return None, "start or end is no cron of five fields"
    if not lengths or min(lengths) != max(lengths):
        return None, "its windows differ in length"
    if any(later - begin < lengths[0] for begin, later in pairwise(starts)):
        return None, "it begins again before it ends"
    return lengths[0].total_seconds(), ""


def window(cron: str, zone: str, seconds: float, **bounds: int | None) -> dict[str, Any]:
    """One window as a manifest states it. bounds: min and max, None is not stated."""
    length = format_duration(seconds) if seconds < SECONDS_PER_DAY else f"{seconds / 3600:g}h"
    stated = {name: count for name, count in bounds.items() if count is not None}
    return {"cron": cron, "timeZone": zone or "UTC", "duration": length, **stated}


def add_window(replicas: dict[str, Any], one: Mapping[str, Any]) -> str:
    """Add a window to these replicas of a spec; the reason if it is refused, else ''."""
    if FIELD not in Replicas.model_fields:
        return "this version has no windows of time"
    wanted = {**replicas, FIELD: [*replicas.get(FIELD, ()), one]}
    try:
        Replicas.model_validate(wanted)
    except ValidationError as error:
        return str(first_refusal(error))
    replicas[FIELD] = wanted[FIELD]
    return ""
