"""Paths of the Kubernetes API: every one is made here, from checked parts.

A name may come from a tenant, in a pod template, a route or a policy. The API server checks some of
them for length only, and an HTTP client folds `..`: a name could lead to another namespace. So
each part is one segment of the path, or refused.
"""

from typing import NewType
from urllib.parse import quote

from servingslo.errors import InvalidNameError

ApiPath = NewType("ApiPath", str)

# What the server is, and which API groups it has.
SERVER_VERSION = ApiPath("/version")
GROUPS = ApiPath("/apis")
# Source: k8s.io/apimachinery, pkg/api/validation/path (`/`, `%`, `.` and `..` are in no name) and
# pkg/util/validation (253 characters). `?`, `#` and `\` end or divide a path for HTTP clients.
_DIVIDING = frozenset("/%?#\\")
_FOLDED = frozenset({".", ".."})
_LONGEST = 253
_ALLOWED = f"1 to {_LONGEST} printable characters without / % ? # \\, and neither . nor .."


def api_path(
    api_version: str,
    plural: str | None = None,
    *,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> ApiPath:
    """The path of a group version, of a collection in it, of one object, or of its subresource.

    namespace: None for all namespaces, or for a kind without any.
    Raises: InvalidNameError for a part that is not one segment of a path, such as an empty one.
    """
    group, divided, version = api_version.rpartition("/")
    parts = [("API group", group)] if divided else []
    parts.append(("API version", version))
    if namespace is not None:
        parts += [("", "namespaces"), ("namespace", namespace)]
    parts += [
        (field, part)
        for field, part in (
            ("resource", plural),
            (f"name of {plural}", name),
            ("subresource", subresource),
        )
        if part is not None
    ]
    segments = "/".join(_segment(field, part) for field, part in parts)
    return ApiPath(f"/apis/{segments}" if divided else f"/api/{segments}")


def _segment(field: str, part: str) -> str:
    is_one = part.isprintable() and _DIVIDING.isdisjoint(part) and part not in _FOLDED
    if not is_one or not 1 <= len(part) <= _LONGEST:
        raise InvalidNameError(field, part[: _LONGEST + 1], _ALLOWED)
    return quote(part, safe="")
