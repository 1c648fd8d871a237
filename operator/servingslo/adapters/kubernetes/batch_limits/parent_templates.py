"""Batch limits in the pod template of KServe's LLMInferenceService, and the former ones back.

Its controller merges that template over its presets, containers by name and `args` as a whole, and
reverts what is written into the Deployment that it makes. A preset's command passes `args` on. One
patch changes the command line and an annotation with the former one.
Source: github.com/kserve/kserve v0.20.0, pkg/controller/v1alpha2/llmisvc (combineBaseRefsConfig,
mergeSpecs, expectedSingleNodeMainDeployment) and config/llmisvcconfig/config-llm-template.yaml.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from servingslo.adapters.kubernetes.api.annotations import AS_WRITTEN, Count, record_in
from servingslo.adapters.kubernetes.api.cache import listed
from servingslo.adapters.kubernetes.api.client import KubeClient, KubeObject
from servingslo.adapters.kubernetes.api.discovery import ApiResource, Discovery
from servingslo.adapters.kubernetes.api.marked_objects import (
    NOT_MANAGED,
    RELEASED,
    annotated,
    annotations_of,
    is_managed,
    is_released,
    marked_released,
    patch_unchanged,
    removed_annotation,
    taken_again,
)
from servingslo.adapters.kubernetes.api.paths import GROUPS, ApiPath, api_path
from servingslo.adapters.kubernetes.batch_limits.canary_records import CANARY_ANNOTATION, digest
from servingslo.adapters.kubernetes.batch_limits.parent_lines import (
    changed_line,
    limits_of_line,
    line_refused,
)
from servingslo.adapters.kubernetes.batch_limits.writer import (
    SUPPORTED_KINDS,
    container_at,
    line_changes,
    stated,
    variable_changes,
)
from servingslo.adapters.kubernetes.pods.parents import KSERVE
from servingslo.adapters.kubernetes.pods.records import ContainerRecord, container_records
from servingslo.adapters.kubernetes.resources import ResourceRef
from servingslo.errors import (
    ArgumentsNotUnderstoodError,
    ClusterError,
    NotFoundError,
    PermissionDeniedError,
    WriteConflictError,
)
from servingslo.policy.inputs import ScaleTarget, SignalProblem
from servingslo.policy.ports import EngineArguments
from servingslo.reasons import Reason

PARENT_KIND = "LLMInferenceService"
# By the part of its workload: where its pod template is, and the annotation of what was written.
_TEMPLATES = {"": ("template",), "prefill": ("prefill", "template")}
_ANNOTATIONS = {"": CANARY_ANNOTATION, "prefill": f"{CANARY_ANNOTATION}-prefill"}
_Pair = Annotated[list[Count | None], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRecord:
    """The annotation's content.

    owner, owner_uid: the ServingSLO. container: whose line was changed. command, args: the former
    ones, None if there were none. variables: former values of changed variables. before, after:
    both limits, None for one without a flag. written: digest of the line as written.
    """

    __pydantic_config__: ClassVar[ConfigDict] = AS_WRITTEN

    owner: str
    owner_uid: str
    container: str
    command: list[str] | None
    args: list[str] | None
    variables: dict[str, str]
    before: _Pair
    after: _Pair
    written: str


_RECORD = TypeAdapter(ParentRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentTemplate:
    """One pod template of an LLMInferenceService. record: None if nothing of ours is in it."""

    path: ApiPath
    part: str
    item: KubeObject
    record: ParentRecord | None

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.item["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.item["metadata"]["name"])

    @property
    def title(self) -> str:
        """Kind and name, as kubectl writes them."""
        return f"{PARENT_KIND}/{self.name}"

    @property
    def field(self) -> str:
        """Where its pod template is, for people."""
        return ".".join(("spec", *_TEMPLATES[self.part]))

    @property
    def managed(self) -> bool:
        """Whether its owner labelled it for the operator."""
        return is_managed(self.item)

    @property
    def edited(self) -> bool:
        """Whether another client changed the line that the operator wrote."""
        record = self.record
        if record is None:
            return False
        found = self.at(record.container)
        if found is None:
            return True
        has = {one["name"] for one in found[1].get("env") or ()}
        ours = _line(found[1], record.variables) == record.written
        return not ours or not record.variables.keys() <= has

    def at(self, container: str) -> tuple[int, KubeObject] | None:
        """Number and content of a container of the template; None if it has none of that name."""
        place: Any = self.item.get("spec") or {}
        for key in _TEMPLATES[self.part]:
            place = place.get(key) or {}
        entries: Sequence[KubeObject] = place.get("containers") or ()
        found = ((at, one) for at, one in enumerate(entries) if one["name"] == container)
        return next(found, None)

    def base(self, index: int) -> str:
        """The JSON pointer of a container."""
        return f"/spec/{'/'.join(_TEMPLATES[self.part])}/containers/{index}"


class ParentTemplates:
    """Reads and changes templates of LLMInferenceServices; no namespaces: in all of them."""

    def __init__(
        self, client: KubeClient, discovery: Discovery, *, namespaces: Sequence[str] = ()
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._namespaces = tuple(namespaces)

    async def read(self, namespace: str, target: ScaleTarget) -> ParentTemplate:
        """The current template that a target stands for. Raises: ClusterError."""
        resource = await self._discovery.resolve(target.api_version, target.kind)
        path = resource.path(namespace, target.name)
        return _template(path, target.part, await self._client.get(path))

    async def engine(
        self, namespace: str, child: ScaleTarget, container: str | None, runtime: str
    ) -> ContainerRecord:
        """The engine's container of the workload that the controller made.

        Raises: ArgumentsNotUnderstoodError if it is unclear or of another kind; NotFoundError if
        there is no container of that name; ClusterError.
        """
        if child.kind not in SUPPORTED_KINDS:
            raise ArgumentsNotUnderstoodError(f"{child.kind} has no pod template known here")
        resource = await self._discovery.resolve(child.api_version, child.kind)
        item = await self._client.get(resource.path(namespace, child.name))
        template = item["spec"]["template"]
        name = template["spec"]["containers"][container_at(item, container, runtime)]["name"]
        return next(one for one in container_records(template) if one.name == name)

    async def refusal(
        self, namespace: str, target: ScaleTarget, engine: ContainerRecord, runtime: str
    ) -> SignalProblem | None:
        """Why limits are not written into the template now; None if they may be.

        engine: the workload's container.
        """
        try:
            parent = await self.read(namespace, target)
        except PermissionDeniedError as error:
            return SignalProblem(reason=Reason.NOT_PERMITTED, detail=str(error))
        except ClusterError as error:
            return SignalProblem(reason=Reason.CLUSTER_UNAVAILABLE, detail=str(error))
        if not parent.managed or is_released(parent.item):
            detail = f"{parent.title}: {NOT_MANAGED if not parent.managed else RELEASED}"
            return SignalProblem(reason=Reason.NOT_PERMITTED, detail=detail)
        found = parent.at(engine.name)
        if found is None:
            detail = (
                f"{parent.title}: {parent.field} has no container {engine.name}; state it there"
            )
            return SignalProblem(reason=Reason.CONTAINER_NOT_FOUND, detail=detail)
        if refused := line_refused(found[1], engine, runtime):
            detail = f"{parent.title}, container {engine.name} in {parent.field}: {refused}"
            return SignalProblem(reason=Reason.ARGUMENTS_NOT_UNDERSTOOD, detail=detail)
        return None

    async def standing(self) -> tuple[ParentTemplate, ...]:
        """Every template that the operator has written into. Raises: ClusterError."""
        resource = await self._resource()
        if resource is None:
            return ()
        found = []
        for namespace in self._namespaces or (None,):
            path = api_path(resource.api_version, resource.plural, namespace=namespace)
            for item in (await listed(self._client, path)).items:
                metadata = item["metadata"]
                own = resource.path(metadata["namespace"], metadata["name"])
                found += [_template(own, part, item) for part in _TEMPLATES]
        return tuple(one for one in found if one.record is not None)

    async def apply(
        self,
        ref: ResourceRef,
        target: ScaleTarget,
        engine: ContainerRecord,
        arguments: EngineArguments,
        runtime: str,
    ) -> bool:
        """Write the limits, with a record of the former line. Returns False if they are set.

        A limit of None has its flag removed. Raises: WriteConflictError if the object changed or
        lost its label; ArgumentsNotUnderstoodError if a flag would not have the intended effect;
        ClusterError otherwise.
        """
        parent = await self.read(ref.namespace, target)
        found = parent.at(engine.name)
        if found is None or not parent.managed or is_released(parent.item):
            raise WriteConflictError(f"{parent.title} is not as it was read any more")
        index, entry = found
        line = changed_line(entry, engine, arguments, runtime)
        base, had = parent.base(index), entry.get("env") or ()
        command, args = stated(entry, line)
        changes: list[KubeObject] = [
            *line_changes(entry, base, command, args),
            *variable_changes(entry, base, line.variables),
        ]
        if not changes:
            return False
        changes += taken_again(parent.item)
        record = _record(parent, entry, engine, runtime)
        record = replace(
            record,
            owner=ref.name,
            owner_uid=ref.uid,
            variables={**{n: _value(entry, n) for n in line.variables}, **record.variables},
            after=[arguments.max_num_seqs, arguments.max_num_batched_tokens],
        )
        env = [{**one, "value": line.variables.get(one["name"], one.get("value"))} for one in had]
        written = _line({"command": command, "args": args, "env": env}, record.variables)
        if written == digest([record.command, record.args, record.variables]):
            changes += _forgotten(parent)
        else:
            told = _RECORD.dump_json(replace(record, written=written)).decode()
            changes += annotated(parent.item, _ANNOTATIONS[parent.part], told)
        await self._patch(parent, changes)
        return True

    async def take_back(self, parent: ParentTemplate, *, released: bool = False) -> bool:
        """Restore the former line; if another client changed it, only the annotation goes.

        released: do not change the object for a while. Raises: WriteConflictError if the object
        changed; ClusterError otherwise.
        """
        record = parent.record
        if record is None:
            return False
        changes = [*_forgotten(parent), *(marked_released(parent.item) if released else ())]
        found = parent.at(record.container)
        if found is not None and not parent.edited:
            index, entry = found
            base = parent.base(index)
            changes += line_changes(entry, base, record.command, record.args)
            changes += variable_changes(entry, base, record.variables)
        await self._patch(parent, changes)
        return True

    async def _resource(self) -> ApiResource | None:
        """The kind in the first version that has it; None if there is none."""
        groups = (await self._client.get(GROUPS)).get("groups") or ()
        for group in (one for one in groups if one["name"] == KSERVE):
            for one in group["versions"]:
                with suppress(NotFoundError):
                    return await self._discovery.resolve(one["groupVersion"], PARENT_KIND)
        return None

    async def _patch(self, parent: ParentTemplate, changes: Sequence[KubeObject]) -> None:
        await patch_unchanged(self._client, parent.path, parent.item, parent.title, changes)


def _template(path: ApiPath, part: str, item: KubeObject) -> ParentTemplate:
    text = annotations_of(item).get(_ANNOTATIONS[part]) or ""
    record = record_in(text, _RECORD)
    return ParentTemplate(path=path, part=part, item=item, record=record)


def _record(
    parent: ParentTemplate, entry: KubeObject, engine: ContainerRecord, runtime: str
) -> ParentRecord:
    """The record of the line from before the operator's first change."""
    record = parent.record
    if record is not None and not parent.edited and record.container == engine.name:
        return record
    return ParentRecord(
        owner="",
        owner_uid="",
        container=engine.name,
        command=entry.get("command"),
        args=entry.get("args"),
        variables={},
        before=list(limits_of_line(entry, engine, runtime)),
        after=[None, None],
        written="",
    )


def _value(entry: KubeObject, variable: str) -> str:
    """The value of a variable; of several with one name, the last counts."""
    return [one.get("value") or "" for one in entry["env"] if one["name"] == variable][-1]


def _line(entry: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """Digest of a container's command line, with these of its variables."""
    values = {one["name"]: one.get("value") for one in entry.get("env") or ()}
    found = {name: values.get(name) for name in variables}
    return digest([entry.get("command"), entry.get("args"), found])


def _forgotten(parent: ParentTemplate) -> Iterator[KubeObject]:
    if _ANNOTATIONS[parent.part] in annotations_of(parent.item):
        yield removed_annotation(_ANNOTATIONS[parent.part])
