"""`servingslo migrate`: a ServingSLO in Recommend from another autoscaler."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from servingslo.adapters.kubernetes.api.client import connect
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.api.convert import parse_spec
from servingslo.api.patterns import DNS_LABEL, DNS_NAME
from servingslo.api.v1alpha1 import API_VERSION, GROUP, KIND, VERSIONS
from servingslo.cli.live import Access
from servingslo.cli.manifest import STANDARD_INPUT, Loader, blamed_on, objects_of
from servingslo.cli.options import Context, Kubeconfig, path_text
from servingslo.errors import InvalidInputError, InvalidSpecError
from servingslo.parsing import parsed_documents, yaml_problem
from servingslo_lab.cli.autoscalers.documents import autoscalers_of
from servingslo_lab.cli.autoscalers.hpa import HPA_API_VERSION
from servingslo_lab.cli.autoscalers.manifest_text import manifest
from servingslo_lab.cli.autoscalers.migration import migrated
from servingslo_lab.cli.autoscalers.pod_autoscaler import POD_AUTOSCALER_API_VERSION
from servingslo_lab.cli.autoscalers.scaled_object import SCALED_OBJECT_API_VERSION
from servingslo_lab.cli.sizing.inputs import parse_objectives

_HPAS = HPA_API_VERSION, "horizontalpodautoscalers"
_SCALED_OBJECTS = SCALED_OBJECT_API_VERSION, "scaledobjects"
_POD_AUTOSCALERS = POD_AUTOSCALER_API_VERSION, "podautoscalers"
# A version that is still served, where a manifest states it; comments and order stay.
_FORMER = re.compile(
    rf"(\bapiVersion[\"']?\s*:\s*[\"']?){re.escape(GROUP)}/(?:{'|'.join(VERSIONS[1:])})\b"
)
# As kubectl names them, and for short.
_RESOURCES = {
    "hpa": _HPAS,
    "horizontalpodautoscaler": _HPAS,
    "horizontalpodautoscalers": _HPAS,
    "so": _SCALED_OBJECTS,
    "scaledobject": _SCALED_OBJECTS,
    "scaledobjects": _SCALED_OBJECTS,
    "podautoscaler": _POD_AUTOSCALERS,
    "podautoscalers": _POD_AUTOSCALERS,
}


def migrate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-|hpa/NAME|scaledobject/NAME|podautoscaler/NAME",
            help="A manifest, standard input, or an object of the cluster.",
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Of the object; for a manifest, where it states none."
        ),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="METRIC:pPERCENTILE:THRESHOLD, such as ttft:p99:1s; may be repeated."),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Write a ServingSLO in Recommend from an HPA, KEDA ScaledObject or AIBrix PodAutoscaler.

    Target, bounds, windows of time, behavior and fallback are taken over, also of one with the
    annotations of llm-d's variant autoscaler; comments say what was not, and why. Nothing is
    changed on a cluster. Objectives come from --objective, else from triggers that are a percentile
    of latency; else an example is written. Of a file with resources of servingslo.dev, the
    apiVersion is set to the present one, and nothing else is changed; exit code 2 names fields that
    are gone.

    Example: servingslo migrate hpa/llama-chat -n inference --objective ttft:p99:1s
    """
    objectives = parse_objectives(objective or ())
    if namespace is not None:
        _check(DNS_LABEL.pattern, namespace, "--namespace", DNS_LABEL.words)
    kind, slash, name = source.partition("/")
    if slash and kind in _RESOURCES and not Path(source).exists():
        if namespace is None:
            raise InvalidInputError("--namespace", None, f"the namespace of {source}")
        _check(DNS_NAME.pattern, name, "NAME", DNS_NAME.words)
        access = Access(kubeconfig=kubeconfig, context=context)
        documents = [asyncio.run(_object(access, kind, namespace, name))]
    else:
        text = _text(source)
        documents = _documents(source, text)
        if ours := [one for one in objects_of(documents) if _is_ours(one)]:
            present = _FORMER.sub(rf"\g<1>{API_VERSION}", text)
            with blamed_on(_named(source)):
                _check_versions(_documents(source, present))
                typer.echo(present, nl=False)
                _check_specs(ours)
            return
    with blamed_on(_named(source)):
        made = [migrated(one, objectives, namespace) for one in autoscalers_of(documents)]
    typer.echo("---\n".join(manifest(one) for one in made), nl=False)


def _check(pattern: str, value: str, field: str, allowed: str) -> None:
    if re.fullmatch(pattern, value) is None:
        raise InvalidInputError(field, value, allowed)


async def _object(access: Access, kind: str, namespace: str, name: str) -> Any:
    api_version, plural = _RESOURCES[kind]
    client = await connect(kubeconfig=path_text(access.kubeconfig), context=access.context)
    try:
        return await client.get(api_path(api_version, plural, namespace=namespace, name=name))
    finally:
        await client.close()


def _is_ours(document: dict[str, Any]) -> bool:
    return str(document.get("apiVersion")).startswith(f"{GROUP}/")


def _check_versions(documents: list[Any]) -> None:
    """Raises: InvalidInputError for an unknown version, or one whose text was not found."""
    for document in filter(_is_ours, objects_of(documents)):
        if (version := document["apiVersion"]) != API_VERSION:
            allowed = f"one of {', '.join(VERSIONS)} of {GROUP}, written as {API_VERSION}"
            raise InvalidInputError("apiVersion", version, allowed)


def _check_specs(documents: list[dict[str, Any]]) -> None:
    """Raises: InvalidSpecError for values that this version refuses; an applied part may lack some.

    The API server drops fields of stored objects that are gone, and refuses them from a manifest.
    """
    for document in documents:
        try:
            if document.get("kind") == KIND:
                parse_spec(document.get("spec"))
        except InvalidSpecError as error:
            if stated := tuple(one for one in error.problems if one.value is not None):
                raise InvalidSpecError(stated) from error


def _text(source: str) -> str:
    try:
        return sys.stdin.read() if source == STANDARD_INPUT else Path(source).read_text("utf-8-sig")
    except OSError as error:
        objects = "hpa/NAME, scaledobject/NAME or podautoscaler/NAME"
        allowed = f"a readable file ({error.strerror}), -, {objects}"
        raise InvalidInputError("FILE", source, allowed) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError("FILE", source, "a manifest in YAML, as UTF-8") from error


def _documents(source: str, text: str) -> list[Any]:
    try:
        return parsed_documents(text, Loader)
    except yaml.YAMLError as error:
        allowed = f"a manifest in YAML ({yaml_problem(error)})"
        raise InvalidInputError("FILE", _named(source), allowed) from error


def _named(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source
