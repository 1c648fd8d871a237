"""Find the last writer of a field in `metadata.managedFields`.

Source: Kubernetes, server-side apply: an entry for each manager and operation, with the fields that
it owns. Several managers own a field if they set it to the same value.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_Fields = Mapping[str, Any]
# The fields that form a container's command line.
_COMMAND_LINE = frozenset({"f:args", "f:command", "f:env"})


def replicas_set_by(metadata: Mapping[str, Any]) -> str | None:
    """The field manager that wrote spec.replicas last; None if not recorded."""
    return _last(metadata, lambda fields: "f:replicas" in (fields.get("f:spec") or {}))


def set_by(metadata: Mapping[str, Any], *path: str) -> str | None:
    """The field manager that wrote something in the object at this path last; None if not known."""

    def owns(fields: _Fields) -> bool:
        for name in path:
            fields = fields.get(f"f:{name}") or {}
        return bool(fields)

    return _last(metadata, owns)


def arguments_set_by(metadata: Mapping[str, Any], container: str) -> str | None:
    """The field manager that wrote a container's command line in the pod template last.

    If the field was removed and has no owner: the manager that wrote the template last. None if not
    recorded.
    """

    def owns_line(fields: _Fields) -> bool:
        found = _template(fields).get("f:containers") or {}
        return not _COMMAND_LINE.isdisjoint(found.get(f'k:{{"name":"{container}"}}') or {})

    return _last(metadata, owns_line) or _last(metadata, lambda fields: bool(_template(fields)))


def _template(fields: _Fields) -> _Fields:
    spec: _Fields = (fields.get("f:spec") or {}).get("f:template") or {}
    return spec.get("f:spec") or {}


def _last(metadata: Mapping[str, Any], owns: Callable[[_Fields], bool]) -> str | None:
    entries: Sequence[Mapping[str, Any]] = metadata.get("managedFields") or ()
    owners = [
        (str(entry.get("time") or ""), sys.intern(str(entry.get("manager") or "")))
        for entry in entries
        if owns(entry.get("fieldsV1") or {})
    ]
    return (max(owners)[1] or None) if owners else None
