"""`servingslo shadow`: another autoscaler's rule next to ServingSLO, on what was."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from servingslo.api.convert import targets_from_spec
from servingslo.api.patterns import DNS_LABEL
from servingslo.cli.manifest import Loader, blamed_on, lines_of, read_resource
from servingslo.cli.output import as_json
from servingslo.cli.prometheus_flags import PrometheusFlags, asks_prometheus
from servingslo.controller.recordings.recording import observation_line, replay
from servingslo.errors import InvalidInputError
from servingslo.parsing import parsed_documents, yaml_problem
from servingslo.policy.inputs import Limits, Targets
from servingslo.units import format_duration, parse_duration_seconds
from servingslo_lab.cli.autoscalers.documents import Autoscaler, autoscalers_of
from servingslo_lab.cli.autoscalers.hpa import HPA_KIND
from servingslo_lab.cli.autoscalers.scaled_object import SCALED_OBJECT_KIND
from servingslo_lab.cli.options import check_writable, written_whole
from servingslo_lab.cli.shadowing.page import page
from servingslo_lab.cli.shadowing.play import played
from servingslo_lab.cli.shadowing.rule import Rule, rule_of
from servingslo_lab.cli.shadowing.summary import Shadow, summary
from servingslo_lab.cli.shadowing.text import shadow_text

if TYPE_CHECKING:
    from servingslo.adapters.prometheus.config import PrometheusConfig

_MOST_DAYS = 31
# The operator's own ticks are 15 s; gauges of a minute hardly differ, at a quarter of the queries.
# Counts that are further apart than `counters.LONGEST_WINDOW_SECONDS` are not compared; half of it
# bears a missing sample.
_STEP = "1m"
_SHORTEST_STEP_SECONDS, _LONGEST_STEP_SECONDS = 15, 120
# A law is learnt in an hour or two; less than this says nothing of a rule.
_LEAST_READ_SECONDS = 6 * 3600.0
_DAY_SECONDS = 86_400


class ShadowFormat(StrEnum):
    """What a shadow is written as."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


@asks_prometheus()
def shadow(
    recording: Annotated[
        str | None,
        typer.Argument(help="A recording, instead of Prometheus; - reads standard input."),
    ] = None,
    hpa: Annotated[Path | None, typer.Option(help="Manifest of a HorizontalPodAutoscaler.")] = None,
    scaled_object: Annotated[
        Path | None, typer.Option(help="Manifest of a ScaledObject, instead.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option("--filename", "-f", help="The ServingSLO to plan for, with Prometheus."),
    ] = None,
    prometheus_url: Annotated[
        str | None,
        typer.Option(
            envvar="SERVINGSLO_PROMETHEUS_URL",
            help="Address of the Prometheus with the past; it is only read.",
        ),
    ] = None,
    asking: PrometheusFlags = PrometheusFlags(),
    days: Annotated[
        int, typer.Option(help=f"How many days back, 1 to {_MOST_DAYS}; with Prometheus.")
    ] = 7,
    every: Annotated[
        str, typer.Option(help="Time between two looks, 15s to 2m; with Prometheus.")
    ] = _STEP,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Of the workload, if no manifest states one."),
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE/NAME", help="The ServingSLO, if several were recorded."),
    ] = None,
    output: Annotated[
        ShadowFormat, typer.Option("--output", "-o", help="json: also each look. html: one page.")
    ] = ShadowFormat.TEXT,
    out: Annotated[
        Path | None, typer.Option(help="File to write instead of standard output.")
    ] = None,
) -> None:
    """Show what the rule in an HPA or a ScaledObject, and what ServingSLO would have ordered.

    On the past in Prometheus, or on a recording. Next to what was: GPU hours and requests that
    missed an objective, with 95 % intervals, and the promise by day. Misses of what was are
    measured, the others follow from the law in steady state. Each rule sees the metrics as they
    were. What could not be read is listed and not filled. kube-state-metrics, if it is scraped,
    gives the replica count, when pods started, and their GPUs.

    Example: servingslo shadow --prometheus-url http://localhost:9090 -f slo.yaml --hpa hpa.yaml
    -o html --out week.html
    """
    if out is not None:
        check_writable(out, "--out")
    source = _autoscaler(hpa, scaled_object)
    rule = rule_of(source)
    if recording is not None:
        if manifest is not None:
            raise InvalidInputError("-f", str(manifest), "not with a recording, which has its spec")
        with lines_of(recording, "RECORDING") as lines:
            plays = played(replay(lines), rule, resource)
        found = summary(plays, gpus_per_replica=plays.devices or 1)
    elif prometheus_url is None:
        raise InvalidInputError("RECORDING", None, "a recording, or --prometheus-url and -f")
    elif manifest is None:
        raise InvalidInputError("-f", None, "the ServingSLO to plan for; `migrate` writes one")
    elif resource is not None:
        raise InvalidInputError("--resource", resource, "only with a recording")
    else:
        week = _week(source, manifest, namespace, days, every)
        found = _from_prometheus(asking.config(prometheus_url), week, rule)
    text = _written(found, output)
    if out is None:
        typer.echo(text)
        return
    with written_whole(out, "--out") as part:
        part.write_text(text + "\n", encoding="utf-8")


def _written(found: Shadow, output: ShadowFormat) -> str:
    if output is ShadowFormat.JSON:
        return as_json(found)
    return page(found) if output is ShadowFormat.HTML else shadow_text(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Week:
    """What is asked for: a workload, its spec, how far back and how often."""

    namespace: str
    name: str
    spec: Any
    targets: Targets
    days: int
    step_seconds: int


def _week(
    source: Autoscaler, manifest: Path, namespace: str | None, days: int, every: str
) -> _Week:
    """Raises: InvalidInputError."""
    if not 1 <= days <= _MOST_DAYS:
        raise InvalidInputError("--days", days, f"1 to {_MOST_DAYS}")
    step = parse_duration_seconds(every, "--every")
    if not _SHORTEST_STEP_SECONDS <= step <= _LONGEST_STEP_SECONDS or step % 1:
        raise InvalidInputError("--every", every, "whole seconds, 15s to 2m")
    metadata, spec = read_resource(manifest)
    with blamed_on(str(manifest)):
        targets = targets_from_spec(spec)
    scaled = source.spec.scale_target_ref
    if (scaled.kind or "Deployment", scaled.name) != (targets.target.kind, targets.target.name):
        allowed = f"{targets.target.kind}/{targets.target.name}, the targetRef of {manifest}"
        value = f"{scaled.kind or 'Deployment'}/{scaled.name}"
        raise InvalidInputError("spec.scaleTargetRef", value, allowed)
    where = namespace or metadata.get("namespace") or source.metadata.namespace
    if not where or re.fullmatch(DNS_LABEL.pattern, str(where)) is None:
        raise InvalidInputError(
            "--namespace", where, f"the workload's namespace: {DNS_LABEL.words}"
        )
    return _Week(
        namespace=str(where),
        name=str(metadata.get("name") or targets.target.name),
        spec=spec,
        targets=targets,
        days=days,
        step_seconds=int(step),
    )


def _from_prometheus(config: "PrometheusConfig", week: _Week, rule: Rule) -> Shadow:
    # HTTP clients are not needed for a recording.
    from servingslo_lab.cli.past.history import prometheus_now_seconds  # noqa: PLC0415
    from servingslo_lab.cli.past.workload import PastQuestion, PastWorkload  # noqa: PLC0415

    step = week.step_seconds
    end = int(prometheus_now_seconds(config)) // step * step
    question = PastQuestion(
        namespace=week.namespace,
        name=week.name,
        targets=week.targets,
        start_seconds=end - week.days * _DAY_SECONDS,
        end_seconds=end,
        step_seconds=step,
    )
    past = PastWorkload(config=config, question=question, tell=_tell)
    limits = Limits(recommend_only=True, tick_seconds=float(step))

    def lines() -> Iterator[str]:
        read = 0
        for observation in past.observations():
            read += step
            yield observation_line(observation)
        if read < _LEAST_READ_SECONDS:
            why = past.gaps[-1].reason if past.gaps else ""
            value = f"{format_duration(read)} of {week.days}d" + (f": {why}" if why else "")
            allowed = f"6h or more of {week.namespace}/{week.targets.target.name} to read"
            raise InvalidInputError("--prometheus-url", value, allowed)

    plays = played(replay(lines(), week.spec, limits), rule, step_seconds=step)
    stated = week.targets.gpus_per_replica or (
        None if week.targets.cost is None else week.targets.cost.gpus_per_replica
    )
    notes = [f"Read at a step of {format_duration(step)}, in {past.queries} range queries."]
    if not past.counted:
        notes.append(
            "kube-state-metrics is not there: the replicas that were are the pods with fresh "
            "metrics, and a cold start is not measured."
        )
    if past.gpus is None and stated is None:
        notes.append("Neither the spec nor kube-state-metrics says how many GPUs a replica has.")
    if past.no_history:
        notes.append(f"Without the weeks before, so no season is known at first: {past.no_history}")
    if week.targets.stated_limits.max_num_seqs is None:
        notes.append("Batch limits on command lines are not in Prometheus: defaults of the engine.")
    gpus = past.gpus or stated or 1
    return summary(plays, gpus_per_replica=gpus, notes=notes, gaps=past.gaps)


def _tell(ratio: float) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        end = "\n" if ratio >= 1 else ""
        typer.echo(f"\r{100 * ratio:.0f} % of the past is read{end}", nl=False, err=True)


def _autoscaler(hpa: Path | None, scaled_object: Path | None) -> Autoscaler:
    """The only one in the manifest. Raises: InvalidInputError."""
    if (hpa is None) == (scaled_object is None):
        value = None if hpa is None else "both"
        raise InvalidInputError("--hpa", value, "exactly one of --hpa and --scaled-object")
    if hpa is not None:
        return _read(hpa, "--hpa", HPA_KIND)
    assert scaled_object is not None  # noqa: S101 - checked above
    return _read(scaled_object, "--scaled-object", SCALED_OBJECT_KIND)


def _read(path: Path, flag: str, kind: str) -> Autoscaler:
    try:
        documents = parsed_documents(path.read_text("utf-8-sig"), Loader)
    except OSError as error:
        raise InvalidInputError(flag, str(path), f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(flag, str(path), "a manifest in YAML, as UTF-8") from error
    except yaml.YAMLError as error:
        allowed = f"a manifest in YAML ({yaml_problem(error)})"
        raise InvalidInputError(flag, str(path), allowed) from error
    with blamed_on(str(path)):
        found = [one for one in autoscalers_of(documents) if one.kind == kind]
        if len(found) != 1:
            raise InvalidInputError("kind", f"{len(found)} of kind {kind}", "exactly one")
    return found[0]
