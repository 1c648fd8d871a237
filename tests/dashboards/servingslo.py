"""The Grafana dashboard that the chart ships: `make dashboard` writes it, a test holds it equal.

    python -m tests.dashboards.servingslo

One row for each question. Queries speak of what the operator exports and of nothing else, so that
the dashboard needs no recording rule and no other exporter. A resource with pools has a line for
each pool, and one for all of them where a sum means something: replicas and cost.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import yaml
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DynamicConfigValue,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
)

from servingslo.features.catalogue import FEATURES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "operator" / "servingslo" / "features"
PATH = ROOT / "charts" / "servingslo-operator" / "files" / "dashboard.json"
_DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_CHANGED = '{namespace=~"$namespace", name=~"$name"}'
# A single target has no label `pool`, which equals an empty one: `.*` matches it too.
_CHOSEN = '{namespace=~"$namespace", name=~"$name", pool=~"$pool"}'
_OF_POOLS = '{namespace=~"$namespace", name=~"$name", pool=~"$pool", pool!=""}'
_WHOLE = "namespace, name"
_RESOURCE = f"{_WHOLE}, pool"
_OBJECTIVE = f"{_RESOURCE}, metric, percentile"
_WIDTH, _HEIGHT = 12, 8
_STAT_WIDTH, _STAT_HEIGHT = 6, 4
_TEXT_MODES = {"values": BigValueTextMode.VALUE_AND_NAME, "names": BigValueTextMode.NAME}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Picture:
    """One panel. unit: as Grafana calls it.

    stat: only the last values, as text: of each line its value, "names" its name. words: of values.
    """

    title: str
    says: str
    unit: str
    queries: Sequence[Query]
    stat: str = ""
    words: tuple[tuple[str, str, str], ...] = ()


def _of(metric: str, by: str = _RESOURCE) -> str:
    """A gauge, whichever operator exports it at the moment."""
    return f"max by ({by}) ({metric}{_CHOSEN})"


def _sum_of(metric: str, label: str = "") -> str:
    """A gauge summed over the pools of a resource; nothing of a single target."""
    also = f", {label}" if label else ""
    return f"sum by ({_WHOLE}{also}) (max by ({_RESOURCE}{also}) ({metric}{_OF_POOLS}))"


def _rate_of(share: str) -> str:
    """Requests per second that a share of the arrivals is."""
    return f"({share}) * on ({_RESOURCE}) group_left {_of('servingslo_arrivals_per_second')}"


def _burn(window: str) -> str:
    """Misses over those that the objective allows, weighted by requests, in a window."""
    least = _of("servingslo_within_objective_ratio", _OBJECTIVE)
    target = _of("servingslo_objective_target_ratio", _OBJECTIVE)
    missed, allowed = _rate_of(f"1 - {least}"), _rate_of(f"(1 - {target}) and {least}")
    return f"sum_over_time(({missed})[{window}:15s]) / sum_over_time(({allowed})[{window}:15s])"


def _hours(replicas: str) -> str:
    """Replica-hours of the last day; a mean would count hours before a resource existed too."""
    return f"sum_over_time(({replicas})[1d:15s]) * 15 / 3600"


_NAME = "{{namespace}}/{{name}} {{pool}}"
_ALL = "{{namespace}}/{{name}} all pools"
_NAMED = f"{_NAME} {{{{metric}}}} p{{{{percentile}}}}"


def _gauge(gauge: str, word: str = "", *labels: str, also: str = "") -> Query:
    """A gauge by labels in addition to the resource's. word: what its lines end with."""
    shown = (_NAME, *(f"{{{{{label}}}}}" for label in labels), word)
    expression = _of(gauge, ", ".join((_RESOURCE, *labels)))
    return Query(f"{expression}{also}", " ".join(filter(None, shown)))


def _objective(gauge: str, word: str = "") -> Query:
    """A gauge of each objective."""
    return Query(_of(gauge, _OBJECTIVE), f"{_NAMED} {word}".strip())


def _of_features() -> dict[str, tuple[Picture, ...]]:
    """The rows of features: pictures of gauges, by labels in addition to the resource's."""
    files = (FOLDER / name / "dashboard.yaml" for name in FEATURES)
    return {
        title: tuple(
            Picture(
                one["title"],
                one["says"],
                one["unit"],
                [
                    _gauge(gauge, word, *one["by"].split(", "))
                    for gauge, word in one.get("gauges", {one.get("gauge"): ""}).items()
                ],
            )
            for one in pictures
        )
        for path in files
        if path.exists()
        for title, pictures in yaml.safe_load(path.read_text(encoding="utf-8")).items()
    }


_KEPT, _MOST_KEPT, _WANTED = (
    _of(f"servingslo_{name}_ratio", _OBJECTIVE)
    for name in ("within_objective", "within_objective_greatest", "objective_target")
)
_OR_NOTHING = f" or {_of('servingslo_replicas_current')} * 0"
ROWS: dict[str, tuple[Picture, ...]] = {
    "At a glance": (
        Picture(
            "Objectives",
            "Whether the share of requests within each threshold is the wanted one.",
            "short",
            [
                Query(
                    f"min by ({_RESOURCE}) (({_KEPT} >= bool {_WANTED}) + "
                    f"({_MOST_KEPT} >= bool {_WANTED}))",
                    _NAME,
                )
            ],
            "values",
            (("0", "missed", "red"), ("1", "between two buckets", "yellow"), ("2", "met", "green")),
        ),
        Picture(
            "Replicas now",
            "Of the target, as the last decision found it.",
            "short",
            [_gauge("servingslo_replicas_current")],
            "values",
        ),
        Picture(
            "Why so many",
            "The constraint that asks for most, and what keeps the planner from its count.",
            "short",
            [
                _gauge("servingslo_binding_constraint", "", "constraint", also=" > 0"),
                Query(
                    f"{_of('servingslo_limited_by', _RESOURCE + ', reason')} > 0",
                    f"{_NAME} held: {{{{reason}}}}",
                ),
            ],
            "names",
        ),
        Picture(
            "Cost an hour now",
            "Where spec.cost states a price.",
            "short",
            [_gauge("servingslo_cost_per_hour", "", "currency")],
            "values",
        ),
    ),
    "Is the objective met?": (
        Picture(
            "Share of requests within the threshold",
            "The least share that the histogram's buckets allow, and the wanted share.",
            "percentunit",
            [
                _objective("servingslo_within_objective_ratio"),
                _objective("servingslo_objective_target_ratio", "wanted"),
            ],
        ),
        Picture(
            "Observed and threshold",
            "The percentile of each objective as observed over the recent window.",
            "s",
            [
                _objective("servingslo_observed_seconds"),
                _objective("servingslo_objective_seconds", "threshold"),
            ],
        ),
    ),
    **_of_features(),
    "What limits?": (
        Picture(
            "Guards that keep the planner from the required count",
            "1 for the reason that holds; 0 where nothing does. Each has a runbook.",
            "short",
            [_gauge("servingslo_limited_by", "", "reason", also=_OR_NOTHING)],
        ),
        Picture(
            "Not ready, and no fresh metrics",
            "1 while a resource cannot be decided for, with the reason, or cannot be seen.",
            "short",
            [
                _gauge("servingslo_not_ready", "", "reason", also=_OR_NOTHING),
                Query(f"1 - {_of('servingslo_metrics_fresh')}", f"{_NAME} no fresh metrics"),
            ],
        ),
    ),
    "Why this many?": (
        Picture(
            "Replicas",
            "What is ready, what the last decision set, and what it would set in mode Auto.",
            "short",
            [
                _gauge("servingslo_desired_replicas", "desired"),
                _gauge("servingslo_replicas_ready", "ready"),
                _gauge("servingslo_replicas_recommended", "recommended"),
                Query(_sum_of("servingslo_desired_replicas"), f"{_ALL} desired"),
            ],
        ),
        Picture(
            "Replicas that each constraint alone asks for",
            "The largest binds.",
            "short",
            [_gauge("servingslo_replicas_needed", "", "constraint")],
        ),
        Picture(
            "Arrivals and what is expected of them",
            "The forecast is for the time when a replica ordered now would be ready.",
            "reqps",
            [
                _gauge("servingslo_arrivals_per_second", "arrivals"),
                _gauge("servingslo_forecast_arrivals_per_second", "forecast"),
            ],
        ),
        Picture(
            "Utilization and KV cache, predicted at the decided count",
            "1 is saturation, or a full cache.",
            "percentunit",
            [
                _gauge("servingslo_utilization_ratio", "utilization"),
                _gauge("servingslo_kv_usage_ratio", "KV cache"),
            ],
        ),
    ),
    "Does the model fit?": (
        Picture(
            "Observed over predicted",
            "1 is a prediction that came true; below 1 it was pessimistic.",
            "short",
            [
                Query(
                    f"{_of('servingslo_observed_seconds', _OBJECTIVE)} "
                    f"/ {_of('servingslo_predicted_seconds', _OBJECTIVE)}",
                    _NAMED,
                )
            ],
        ),
        Picture(
            "Error of the service law, and whether it decides",
            "A law is trusted below 15 %; while none is, measured saturation decides.",
            "percentunit",
            [
                _gauge("servingslo_model_fit_error_ratio", "fit error"),
                _gauge("servingslo_model_trusted", "trusted"),
            ],
        ),
        Picture(
            "GPUs busy, as measured and as the law explains",
            "Shares of the last minutes, where DCGM is scraped; far apart, no law is trusted.",
            "percentunit",
            [
                _gauge("servingslo_gpu_utilization_ratio", "measured"),
                _gauge("servingslo_gpu_law_utilization_ratio", "law"),
            ],
        ),
    ),
    "Is the budget spent?": (
        Picture(
            "Budget burn over an hour and a day",
            "1 spends exactly what the percentile allows. A threshold between two buckets "
            "counts as missed.",
            "short",
            [Query(_burn("1h"), f"{_NAMED} 1 h"), Query(_burn("1d"), f"{_NAMED} 1 d")],
        ),
        Picture(
            "Requests without a whole answer",
            "Refused, failed (5xx and timeouts) and aborted, per second.",
            "reqps",
            [
                Query(
                    f"max by ({_RESOURCE}, outcome) (servingslo_requests_per_second"
                    + _CHOSEN.replace("}", ', outcome=~"refused|failed|aborted"}')
                    + ")",
                    f"{_NAME} {{{{outcome}}}}",
                )
            ],
        ),
        Picture(
            "Requests to be drained",
            "Backlog on top of new arrivals.",
            "short",
            [_gauge("servingslo_backlog_requests")],
        ),
    ),
    "What does it cost?": (
        Picture(
            "Cost an hour",
            "Of the decided count, where spec.cost states a price.",
            "short",
            [
                _gauge("servingslo_cost_per_hour", "", "currency"),
                Query(_sum_of("servingslo_cost_per_hour", "currency"), f"{_ALL} {{{{currency}}}}"),
            ],
        ),
        Picture(
            "Replica-hours of the last day",
            "Only of the time in which an operator was scraped.",
            "short",
            [
                Query(_hours(_of("servingslo_replicas_current")), _NAME),
                Query(_hours(_sum_of("servingslo_replicas_current")), _ALL),
            ],
        ),
    ),
    "What energy does it take?": (
        Picture(
            "Joules an output token",
            "Energy of the GPUs over the last minutes, idle ones included.",
            "joule",
            [_gauge("servingslo_joules_per_output_token")],
        ),
        Picture(
            "Power of the GPUs",
            "Where DCGM's exporter is scraped.",
            "watt",
            [
                _gauge("servingslo_gpu_power_watts"),
                Query(_sum_of("servingslo_gpu_power_watts"), _ALL),
            ],
        ),
    ),
    "Does the operator work?": (
        Picture(
            "A round of decisions",
            "Mean duration, and how long ago the last one succeeded.",
            "s",
            [
                Query(
                    "sum(rate(servingslo_tick_duration_seconds_sum[$__rate_interval])) "
                    "/ sum(rate(servingslo_tick_duration_seconds_count[$__rate_interval]))",
                    "duration",
                ),
                Query("min(servingslo_last_success_age_seconds)", "since the last"),
            ],
        ),
        Picture(
            "Writes and failures",
            "Writes to targets by outcome, and failures by part, per second.",
            "cps",
            [
                Query(
                    "sum by (knob, outcome) "
                    f"(rate(servingslo_changes_total{_CHANGED}[$__rate_interval])) or vector(0)",
                    "{{knob}} {{outcome}}",
                ),
                Query(
                    "sum by (part) (rate(servingslo_failures_total[$__rate_interval])) "
                    "or vector(0)",
                    "failed {{part}}",
                ),
            ],
        ),
    ),
}


# (name, expression, title, text) of what is marked on every panel.
ANNOTATIONS = (
    (
        "Replica counts",
        f"changes(({_of('servingslo_replicas_current')})[30s:15s]) > 0",
        "{{namespace}}/{{name}} {{pool}}",
        "replica count changed",
    ),
    (
        "Limits and weights",
        f"sum by ({_WHOLE}, knob, reason) (increase(servingslo_changes_total"
        + _CHANGED.replace("}", ', knob!="replicas", outcome=~"written|rolled-back"}')
        + "[1m])) > 0",
        "{{namespace}}/{{name}} {{knob}}",
        "{{reason}}",
    ),
)


def queries() -> Iterator[tuple[str, str]]:
    """(panel, expression) of every query."""
    for row in ROWS.values():
        for picture in row:
            for query in picture.queries:
                yield picture.title, query.expression


def rendered() -> str:
    """The dashboard as Grafana reads it."""
    board = (
        dashboard.Dashboard("ServingSLO")
        .uid("servingslo")
        .description("Objectives, replicas and reasons of every ServingSLO")
        .tags(["servingslo"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(_variable("namespace", "servingslo_replicas_current"))
        .with_variable(_variable("name", 'servingslo_replicas_current{namespace=~"$namespace"}'))
        .with_variable(
            _variable("pool", 'servingslo_replicas_current{namespace=~"$namespace", name=~"$name"}')
        )
    )
    numbers = count(1)
    for title, pictures in ROWS.items():
        board = board.with_row(dashboard.Row(title).id(next(numbers)))
        for picture in pictures:
            board = board.with_panel(_panel(picture).id(next(numbers)))
    for name, expression, _, _ in ANNOTATIONS:
        marked = dashboard.AnnotationQuery().name(name).datasource(_DATASOURCE).expr(expression)
        board = board.annotation(marked.enable(True).icon_color("blue"))  # noqa: FBT003
    found = json.loads(JSONEncoder().encode(board.build()))
    # Of Grafana's Prometheus data source, which the builder does not know.
    for one, (_, _, title, text) in zip(found["annotations"]["list"], ANNOTATIONS, strict=True):
        one |= {"titleFormat": title, "textFormat": text, "step": "15s"}
    return json.dumps(found, sort_keys=True, indent=1) + "\n"


def _variable(name: str, series: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .datasource(_DATASOURCE)
        .query(f"label_values({series}, {name})")
        .include_all(True)  # noqa: FBT003 - the builder's own signature
        .all_value(".*")
        .multi(True)  # noqa: FBT003
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _panel(picture: Picture) -> timeseries.Panel | stat.Panel:
    panel = _stat(picture) if picture.stat else _lines(picture)
    for letter, query in zip("ABCD", picture.queries, strict=False):
        panel = panel.with_target(
            prometheus.Dataquery()
            .expr(query.expression)
            .legend_format(query.legend)
            .ref_id(letter)
            .datasource(_DATASOURCE)
        )
    return panel


def _stat(picture: Picture) -> stat.Panel:
    words = {
        value: ValueMappingResult(text=word, color=color) for value, word, color in picture.words
    }
    color = BigValueColorMode.VALUE if words else BigValueColorMode.NONE
    return (
        stat.Panel()
        .title(picture.title)
        .description(picture.says)
        .datasource(_DATASOURCE)
        .unit(picture.unit)
        .mappings([ValueMap(words)] if words else [])
        .color_mode(color)
        .graph_mode(BigValueGraphMode.NONE)
        .text_mode(_TEXT_MODES[picture.stat])
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("-")
        .span(_STAT_WIDTH)
        .height(_STAT_HEIGHT)
    )


def _lines(picture: Picture) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(picture.title)
        .description(picture.says)
        .datasource(_DATASOURCE)
        .unit(picture.unit)
        .min(0)
        .span(_WIDTH)
        .height(_HEIGHT)
        .legend(
            common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)  # noqa: FBT003
        )
        # What is asked for is a line to be under, not one that was measured.
        .override_by_regexp(
            "/ (threshold|wanted)$/",
            [
                DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [10, 10]}),
                DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "red"}),
            ],
        )
    )


def main() -> None:
    """Write the dashboard into the chart."""
    PATH.write_text(rendered(), encoding="utf-8")


if __name__ == "__main__":
    main()
