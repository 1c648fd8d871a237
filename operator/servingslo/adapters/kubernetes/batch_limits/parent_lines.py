"""A container's line in the template of KServe's LLMInferenceService, and what becomes of it.

The service may leave `command` or `args` to KServe's presets; then the workload's container has
them. A change counts only if the workload's command is read to pass it on to the engine.
"""

from collections.abc import Mapping
from typing import Any

from servingslo.adapters.kubernetes.pods.config_references import literal_variables
from servingslo.adapters.kubernetes.pods.records import ContainerRecord
from servingslo.errors import ArgumentsNotUnderstoodError
from servingslo.policy.inputs import LIMIT_FIELDS
from servingslo.policy.ports import EngineArguments
from servingslo.runtimes import catalogue
from servingslo.runtimes.launch.arguments import (
    BatchArguments,
    ContainerArguments,
    batch_arguments,
    replace_batch_arguments,
)
from servingslo.runtimes.launch.command_line import command_line, expanded
from servingslo.runtimes.launch.write_refusals import write_refused
from servingslo.runtimes.shell.words import Environment

# Any limit does, to see whether a flag would reach the engine.
_PROBE = EngineArguments(max_num_seqs=64, max_num_batched_tokens=2048)


def line_refused(entry: Mapping[str, Any], engine: ContainerRecord, runtime: str) -> str:
    """Why limits are not written into this container of the service; '' if they may be."""
    try:
        changed_line(entry, engine, _PROBE, runtime)
    except ArgumentsNotUnderstoodError as error:
        return str(error)
    return ""


def changed_line(
    entry: Mapping[str, Any], engine: ContainerRecord, wanted: EngineArguments, runtime: str
) -> ContainerArguments:
    """The service's own command and args with these limits; a limit of None has its flag removed.

    engine: the workload's container of that name.
    Raises: ArgumentsNotUnderstoodError if they would not have the intended effect.
    """
    command, args = entry.get("command"), entry.get("args")
    profile, variables = catalogue.profile(runtime), literal_variables(entry)
    if engine.unread:
        raise ArgumentsNotUnderstoodError(engine.unread)
    if not args and engine.args:
        raise ArgumentsNotUnderstoodError(
            "its args come from a preset or baseRef, which own ones would replace: state them there"
        )
    if not command and not args:
        if not engine.command:
            raise ArgumentsNotUnderstoodError(
                "neither command nor args are known: state them there"
            )
        flags = ((knob.flag, getattr(wanted, knob.field)) for knob in profile.knobs)
        given = (f"{flag}={value}" for flag, value in flags if value is not None)
        changed = ContainerArguments(args=tuple(given))
    else:
        line = command or engine.command, args
        if refused := write_refused(*line, profile, variables, image=engine.image):
            raise ArgumentsNotUnderstoodError(refused)
        limits = BatchArguments(
            max_num_seqs=wanted.max_num_seqs, max_num_batched_tokens=wanted.max_num_batched_tokens
        )
        removed = tuple(k.field for k in profile.knobs if getattr(wanted, k.field) is None)
        changed = replace_batch_arguments(
            command, args, limits, profile, removed=removed, variables=variables
        )
    known = {**variables, **changed.variables}
    found = _read({"command": changed.command, "args": changed.args}, engine, known, runtime)
    asked = {name: getattr(wanted, name) for name in LIMIT_FIELDS}
    if any(value not in {None, getattr(found, name)} for name, value in asked.items()):
        raise ArgumentsNotUnderstoodError(
            "the container's command does not pass args on to the engine: state its command there"
        )
    return changed


def limits_of_line(
    entry: Mapping[str, Any], engine: ContainerRecord, runtime: str
) -> tuple[int | None, int | None]:
    """The limits that the service's line gives the engine; None for one without a flag."""
    found = _read(entry, engine, literal_variables(entry), runtime)
    return found.max_num_seqs, found.max_num_batched_tokens


def _read(
    entry: Mapping[str, Any], engine: ContainerRecord, variables: Mapping[str, str], runtime: str
) -> BatchArguments:
    profile, known = catalogue.profile(runtime), {**engine.environment, **variables}
    line = command_line(
        expanded(entry.get("command") or engine.command, known),
        expanded(entry.get("args"), known),
        profile.starts,
        Environment(known=known, unset=engine.unset),
    )
    return batch_arguments(line, profile)
