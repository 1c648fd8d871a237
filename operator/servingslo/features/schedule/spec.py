"""spec.replicas.schedule, also of each pool."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, model_validator

from servingslo.api.constraints import (
    MAX_REPLICAS,
    Between,
    Count,
    DurationBetween,
    Matching,
    cel_rule,
    not_allowed,
)
from servingslo.api.patterns import TIME_ZONE
from servingslo.api.spec_base import OF_REPLICAS, ApiModel, SpecPart, with_rules
from servingslo.features.schedule.bounds import SCHEDULE, Schedule
from servingslo.features.schedule.windows import Window
from servingslo.units import parse_duration_seconds

# As many as policies of behavior: the days of a week and three more.
MOST_WINDOWS = 10
_MONTHS = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_DAYS = "SUN|MON|TUE|WED|THU|FRI|SAT"
# Minute, hour, day of month, month, day of week, as crontab(5) and CronJob have them.
_VALUES = (
    "[0-5]?[0-9]",
    "(?:[01]?[0-9]|2[0-3])",
    "(?:0?[1-9]|[12][0-9]|3[01])",
    f"(?:0?[1-9]|1[0-2]|{_MONTHS})",
    f"(?:[0-7]|{_DAYS})",
)
_LONGEST_CRON = 100


def _field(value: str) -> str:
    part = f"(?:[*]|{value}(?:-{value})?)(?:/[1-9][0-9]?)?"
    return f"{part}(?:,{part})*"


_CRON_WORDS = (
    "five fields of cron that come true: minute, hour, day of month, month, day of week (such as "
    "0 8 * * MON-FRI)"
)
_CRON = Matching(f"^(?i:{' +'.join(map(_field, _VALUES))})$", _CRON_WORDS, _LONGEST_CRON)
_BOUND = "min, max or both"
_MIN = "at most max, of the window or else of replicas"
_MAX = "at least min, of the window or else of replicas"
_FAILURES = "more than toleratedFailures"
_IDLE = "1 or more, or replicas.idleAfter with it"


def _comes_true(cron: str) -> str:
    try:
        if next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)), None) is not None:
            return cron
    except CronSimError:
        pass
    raise not_allowed(_CRON_WORDS)


class ScheduledBounds(ApiModel):
    """Bounds on the replica count from each beginning on, for a time."""

    model_config = with_rules(
        cel_rule("has(self.min) || has(self.max)", allowed=_BOUND, got="neither"),
        cel_rule(
            "!has(self.min) || !has(self.max) || self.min <= self.max",
            allowed="at most max, %s",
            got="%s",
            values=("self.max", "self.min"),
            field_path=".min",
        ),
    )

    cron: Annotated[str, _CRON, AfterValidator(_comes_true)] = Field(
        description="When it begins: minute, hour, day of month, month and day of week, such as "
        "0 8 * * MON-FRI. Its replicas are ordered one cold start earlier."
    )
    time_zone: TIME_ZONE = Field(
        "UTC", description="Time zone of cron, such as Europe/Berlin; UTC by default."
    )
    duration: Annotated[str, DurationBetween("1m", "168h")] = Field(
        description="How long it lasts, 1m to 168h."
    )
    min: Annotated[Count, Between(0, MAX_REPLICAS)] | None = Field(
        None,
        description="Fewest replicas instead of replicas.min, 0 to 10000; 0 needs idleAfter.",
    )
    max: Annotated[Count, Between(1, MAX_REPLICAS)] | None = Field(
        None, description="Most replicas instead of replicas.max, 1 to 10000."
    )

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min is None and self.max is None:
            raise not_allowed(_BOUND)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise not_allowed(f"at most max, {self.max}", path=("min",), value=self.min)
        return self


def _rule(broken: str, allowed: str, value: str) -> dict[str, Any]:
    """CEL of the replicas: no window is so. value: of the first one that is, with its place."""
    return cel_rule(
        f"!has(self.schedule) || !self.schedule.exists(w, {broken})",
        allowed=allowed,
        got=f"%s at schedule[%d].{value}",
        values=(
            f"self.schedule.filter(w, {broken})[0].{value}",
            f"self.schedule.map(w, {broken}).indexOf(true)",
        ),
        field_path=".schedule",
    )


RULES = (
    _rule("has(w.min) && !has(w.max) && has(self.max) && w.min > self.max", _MIN, "min"),
    _rule("has(w.max) && !has(w.min) && self.min > w.max", _MAX, "max"),
    _rule("has(w.max) && self.toleratedFailures >= w.max", _FAILURES, "max"),
    _rule("has(w.min) && w.min == 0 && !has(self.idleAfter)", _IDLE, "min"),
)


def _check(replicas: Any) -> None:
    """The same rules. Raises: PydanticCustomError for the first window that breaks one."""
    for place, one in enumerate(replicas.schedule or ()):
        usual, least, most = replicas.max, ("schedule", place, "min"), ("schedule", place, "max")
        if one.min is not None and one.max is None and usual is not None and one.min > usual:
            raise not_allowed(_MIN, path=least, value=one.min)
        if one.max is not None and one.min is None and replicas.min > one.max:
            raise not_allowed(_MAX, path=most, value=one.max)
        if one.max is not None and replicas.tolerated_failures >= one.max:
            raise not_allowed(_FAILURES, path=most, value=one.max)
        if one.min == 0 and replicas.idle_after is None:
            raise not_allowed(_IDLE, path=least, value=one.min)


def _targets(stated: Sequence[ScheduledBounds]) -> Schedule:
    return Schedule(
        windows=tuple(
            Window(
                cron=one.cron,
                zone=one.time_zone,
                duration_seconds=parse_duration_seconds(one.duration),
                minimum=one.min,
                maximum=one.max,
            )
            for one in stated
        )
    )


PART = SpecPart(
    key=SCHEDULE,
    within=OF_REPLICAS,
    field=(
        tuple[ScheduledBounds, ...] | None,
        Field(
            None,
            min_length=1,
            max_length=MOST_WINDOWS,
            description="Other bounds at certain times, up to 10 windows. Of several in force the "
            "greatest min and the least max hold; a max cuts a min.",
        ),
    ),
    targets=_targets,
    states=lambda stated, _replicas: {"zero_at_times": any(one.min == 0 for one in stated)},
    rules=RULES,
    check=_check,
)
