"""What another distribution adds to this one's commands: servingslo-lab, found by entry points.

The lab sizes, migrates, simulates, replays, fits laws, starts a cluster here; no image has it.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from servingslo.errors import LabMissingError

COMMANDS = "servingslo.commands"
"""Group of entry points: the name of a command, and its function."""
DOCUMENTS = "servingslo.documents"
"""Group of entry points: the name of a document of `servingslo schema`, and its type."""
OPTIONS = "servingslo.options"
"""Group of entry points: command and option, as explain-sweep, and its function."""
DISTRIBUTION = "servingslo-lab"


def installed(group: str, name: str) -> bool:
    """Whether a distribution that is installed has an entry point of this name in the group."""
    return _entry_point(group, name) is not None


def loaded(group: str, name: str, typed: str) -> Any:
    """What the entry point of this name in the group stands for, imported.

    typed: the command that needs it, as it was typed, for the message.
    Raises: LabMissingError where no distribution has it.
    """
    entry = _entry_point(group, name)
    if entry is None:
        raise LabMissingError(typed)
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        # The metadata of a distribution whose files are gone.
        if error.name == entry.module.partition(".")[0]:
            raise LabMissingError(typed) from error
        raise


def _entry_point(group: str, name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=group, name=name)), None)
