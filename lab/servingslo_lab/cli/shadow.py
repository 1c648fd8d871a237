"""`servingslo shadow`: another autoscaler's rule on a recording."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from servingslo.cli.manifest import Loader, blamed_on, lines_of
from servingslo.cli.output import OutputFormat, as_json
from servingslo.controller.recordings.recording import replay
from servingslo.errors import InvalidInputError
from servingslo.parsing import parsed_documents, yaml_problem
from servingslo_lab.cli.autoscalers.documents import Autoscaler, autoscalers_of
from servingslo_lab.cli.autoscalers.hpa import HPA_KIND
from servingslo_lab.cli.autoscalers.scaled_object import SCALED_OBJECT_KIND
from servingslo_lab.cli.shadowing.play import played
from servingslo_lab.cli.shadowing.rule import rule_of
from servingslo_lab.cli.shadowing.text import shadow_text


def shadow(
    recording: Annotated[str, typer.Argument(help="A recording; - reads standard input.")],
    hpa: Annotated[Path | None, typer.Option(help="Manifest of a HorizontalPodAutoscaler.")] = None,
    scaled_object: Annotated[
        Path | None, typer.Option(help="Manifest of a ScaledObject, instead.")
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE/NAME", help="The ServingSLO, if several were recorded."),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="json: also each observation.")
    ] = OutputFormat.TEXT,
) -> None:
    """Show what the rule in an HPA or a ScaledObject would have ordered on what was recorded.

    Next to what was ordered and to ServingSLO: replicas, replica-hours, and the requests that would
    have missed an objective by the law in steady state. The rule sees the metrics as they were.

    Example: servingslo shadow week.jsonl --hpa hpa.yaml
    """
    if (hpa is None) == (scaled_object is None):
        value = None if hpa is None else "both"
        raise InvalidInputError("--hpa", value, "exactly one of --hpa and --scaled-object")
    if hpa is not None:
        rule = rule_of(_read(hpa, "--hpa", HPA_KIND))
    else:
        assert scaled_object is not None  # noqa: S101 - checked above
        rule = rule_of(_read(scaled_object, "--scaled-object", SCALED_OBJECT_KIND))
    with lines_of(recording, "RECORDING") as lines:
        found = played(replay(lines), rule, resource)
    typer.echo(as_json(found) if output is OutputFormat.JSON else shadow_text(found))


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
