"""The engine's container in a pod template, with other batch limits or with its former ones."""

from collections.abc import Mapping, Sequence

from servingslo.adapters.kubernetes.api.client import KubeObject
from servingslo.adapters.kubernetes.pods.config_references import literal_variables
from servingslo.adapters.kubernetes.pods.engine_container import engine_container, sidecar_refused
from servingslo.adapters.kubernetes.pods.records import container_records
from servingslo.errors import (
    ArgumentsNotUnderstoodError,
    NotFoundError,
)
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.arguments import (
    BatchArguments,
    replace_batch_arguments,
)
from servingslo.runtimes.launch.write_refusals import write_refused


def container_at(item: KubeObject, container: str | None, runtime: str | None = None) -> int:
    """Index of the engine's container in the pod template.

    runtime: of the engine. Raises: NotFoundError if there is no container of that name;
    ArgumentsNotUnderstoodError if the engine's container is ambiguous or an init container.
    """
    template: KubeObject = item["spec"]["template"]
    found = engine_container(container_records(template), container, runtime=runtime)
    if found is None:
        raise NotFoundError(f"container {container!r} is not in the pod template")
    if refused := (found.unread if not found.name else sidecar_refused(found)):
        raise ArgumentsNotUnderstoodError(refused)
    names = [entry["name"] for entry in template["spec"]["containers"]]
    return names.index(found.name)


def changed_container(
    entry: KubeObject, limits: tuple[int, int], runtime: str, *, queue: int | None = None
) -> KubeObject:
    """The container with a command line that sets both limits; the same if it sets them already.

    queue: bound on running plus waiting requests, if the runtime has one; None: unchanged.
    Raises: ArgumentsNotUnderstoodError if a flag would not have the intended effect.
    """
    command, args = entry.get("command"), entry.get("args")
    wanted = BatchArguments(
        max_num_seqs=limits[0], max_num_batched_tokens=limits[1], max_num_queued_reqs=queue
    )
    profile = catalogue.profile(runtime)
    variables = literal_variables(entry)
    if refused := write_refused(command, args, profile, variables, image=entry.get("image")):
        raise ArgumentsNotUnderstoodError(refused)
    line = replace_batch_arguments(command, args, wanted, profile, variables=variables)
    lines = [
        list(new or ()) if new or entry.get(key) == [] else None
        for key, new in (("command", line.command), ("args", line.args))
    ]
    return with_line(entry, lines[0], lines[1], line.variables)


def with_line(
    entry: KubeObject,
    command: Sequence[str] | None,
    args: Sequence[str] | None,
    variables: Mapping[str, str],
) -> KubeObject:
    """The container with this command line; None for a part that it does not have.

    Of several variables with one name, the last one counts.
    """
    changed = {key: value for key, value in entry.items() if key not in {"command", "args"}}
    stated = {"command": command, "args": args}
    changed |= {key: list(value) for key, value in stated.items() if value is not None}
    if variables:
        env = list(entry["env"])
        places = {one["name"]: place for place, one in enumerate(env)}
        for name, value in variables.items():
            env[places[name]] = {"name": name, "value": value}
        changed["env"] = env
    return changed
