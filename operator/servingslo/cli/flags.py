"""A set of flags in the signature of a command, which is all that Typer looks at."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import Field

Command = Callable[..., None]


def spread(
    command: Command,
    parameter: str,
    flags: "Mapping[str, Field[Any]]",
    gathered: Callable[[dict[str, Any]], Any],
) -> Command:
    """The command with these flags in place of one parameter.

    flags: by name; default and annotation of a field are those of the flag. gathered: what the
    command gets for the parameter, of the values stated.
    """

    @functools.wraps(command)
    def asking(**arguments: Any) -> None:
        stated = {name: arguments.pop(name) for name in flags}
        command(**arguments, **{parameter: gathered(stated)})

    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for one in own.parameters.values():
        if one.name != parameter:
            parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        parameters += (
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field.type,
            )
            for name, field in flags.items()
        )
    asking.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    asking.__annotations__ = {one.name: one.annotation for one in parameters}
    return asking
