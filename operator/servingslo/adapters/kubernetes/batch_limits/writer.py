"""Writes batch limits into a pod template: implements `policy.ports.BatchingWriter`."""

from collections.abc import Iterator, Mapping, Sequence

from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.discovery import Discovery
from servingslo.adapters.kubernetes.api.marked_objects import patch_unchanged
from servingslo.adapters.kubernetes.pods.config_references import literal_variables
from servingslo.adapters.kubernetes.pods.engine_container import engine_container, sidecar_refused
from servingslo.adapters.kubernetes.pods.records import container_records
from servingslo.errors import (
    ArgumentsNotUnderstoodError,
    NotFoundError,
)
from servingslo.policy.inputs import ScaleTarget
from servingslo.policy.ports import EngineArguments
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.arguments import (
    BatchArguments,
    ContainerArguments,
    replace_batch_arguments,
)
from servingslo.runtimes.launch.write_refusals import write_refused

SUPPORTED_KINDS = frozenset({"Deployment", "StatefulSet"})


class KubernetesBatching:
    """Read, change, patch. `args` is an atomic list, so the object must not change in between."""

    def __init__(self, client: KubeClient, discovery: Discovery) -> None:
        self._client = client
        self._discovery = discovery

    async def apply(
        self,
        namespace: str,
        target: ScaleTarget,
        container: str | None,
        arguments: EngineArguments,
        runtime: str,
    ) -> bool:
        """Patch the container's arguments under a resourceVersion precondition.

        For a limit of None the flag is removed.
        Returns whether anything was written; False if the arguments are already as wanted.
        Raises: WriteConflictError if the object changed; ArgumentsNotUnderstoodError if the
        command line cannot be changed safely; ClusterError otherwise.
        """
        if target.kind not in SUPPORTED_KINDS:
            raise ArgumentsNotUnderstoodError(f"{target.kind} has no pod template known here")
        resource = await self._discovery.resolve(target.api_version, target.kind)
        path = resource.path(namespace, target.name)
        item = await self._client.get(path)
        index = container_at(item, container, runtime)
        changes = changed_arguments(item, index, arguments, runtime)
        if not changes:
            return False
        title = f"{target.kind}/{target.name}"
        await patch_unchanged(self._client, path, item, title, changes, manager=None)
        return True


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


def changed_arguments(
    item: KubeObject,
    index: int,
    arguments: EngineArguments,
    runtime: str,
    *,
    queue: int | None = None,
) -> list[KubeObject]:
    """The changes of a container's command line that set the limits; None removes a limit.

    queue: bound on running plus waiting requests, if the runtime has one; None: unchanged.
    A list that becomes empty is removed: it did not exist before our flag.
    Raises: ArgumentsNotUnderstoodError if a flag would not have the intended effect.
    """
    entry: KubeObject = item["spec"]["template"]["spec"]["containers"][index]
    command, args = entry.get("command"), entry.get("args")
    wanted = BatchArguments(
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_num_queued_reqs=queue,
    )
    profile = catalogue.profile(runtime)
    variables = literal_variables(entry)
    if refused := write_refused(command, args, profile, variables, image=entry.get("image")):
        raise ArgumentsNotUnderstoodError(refused)
    removed = tuple(k.field for k in profile.knobs if getattr(wanted, k.field) is None)
    changed = replace_batch_arguments(
        command, args, wanted, profile, removed=removed, variables=variables
    )
    base = f"/spec/template/spec/containers/{index}"
    return [
        *line_changes(entry, base, *stated(entry, changed)),
        *variable_changes(entry, base, changed.variables),
    ]


def stated(
    entry: KubeObject, line: ContainerArguments
) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Command and args for a container; None for an empty one that it did not have."""
    command, args = (
        list(new) if new or entry.get(key) == [] else None
        for key, new in (("command", line.command), ("args", line.args))
    )
    return command, args


def line_changes(
    entry: KubeObject, base: str, command: Sequence[str] | None, args: Sequence[str] | None
) -> Iterator[KubeObject]:
    """The changes that give a container this command line; None removes a part of it."""
    for key, value in (("command", command), ("args", args)):
        if entry.get(key) == value:
            continue
        if value is None:
            yield {"op": "remove", "path": f"{base}/{key}"}
        else:
            yield {"op": "add", "path": f"{base}/{key}", "value": value}


def variable_changes(
    entry: KubeObject, base: str, values: Mapping[str, str]
) -> Iterator[KubeObject]:
    """The changes that set a container's variables; of several with one name, the last counts."""
    places = {one["name"]: place for place, one in enumerate(entry.get("env") or ())}
    for name, value in values.items():
        path = f"{base}/env/{places[name]}"
        yield {"op": "replace", "path": path, "value": {"name": name, "value": value}}
