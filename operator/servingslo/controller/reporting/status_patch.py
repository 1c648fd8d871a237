"""JSON Merge Patches of a status.

A write without an answer may have been taken or not: the next patch has to hold for both.
"""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def merge_patch(before: Json, changed: Json) -> dict[str, Any]:
    """A JSON Merge Patch that sets the changed fields exactly, without leftovers."""
    patch: dict[str, Any] = {}
    for key, value in changed.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            gone = dict.fromkeys(name for name in old if name not in value)
            patch[key] = {**gone, **merge_patch(old, value)}
        else:
            patch[key] = value
    return patch


def either(one: Json, another: Json) -> dict[str, Any]:
    """A status with the fields of both, where it is not known which of the two is in force."""
    found = {**one, **another}
    for name in one.keys() & another.keys():
        before, after = one[name], another[name]
        if isinstance(before, Mapping):
            found[name] = either(before, after) if isinstance(after, Mapping) else before
    return found
