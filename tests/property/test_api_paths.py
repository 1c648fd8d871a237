"""Paths of the Kubernetes API: whatever a tenant names, a request stays where it belongs.

Invariants, over any text as any part:
1. A path has one segment for each part, as the HTTP client sends it, and no query; or the part is
   refused with its field and its text, as an error that every reader of the API reports.
2. No other file of the operator makes a path.
"""

import ast
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

import servingslo
from servingslo.adapters.kubernetes.api import paths
from servingslo.adapters.kubernetes.api.paths import api_path
from servingslo.errors import ClusterError, InvalidNameError

SOURCE = Path(servingslo.__file__).parent
# Pieces of which traversals are made, next to any character.
PIECES = [
    "..",
    ".",
    "/",
    "%2e",
    "%2F",
    "%",
    "?",
    "?watch=true",
    "#",
    "\\",
    ";",
    "\0",
    "\n",
    " ",
    "x",
]
PARTS = st.one_of(
    st.text(max_size=300),
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text(st.characters(), min_size=250, max_size=260),
)


@given(part=PARTS, place=st.sampled_from(["plural", "namespace", "name", "subresource"]))
@example(part="../../good/configmaps/x", place="name")
@example(part="..", place="namespace")
@example(part="x?watch=true", place="name")
@example(part="\ud800", place="name")
def test_a_part_is_one_segment_or_refused(part, place):
    """What a tenant may write, in each place of a path."""
    parts = {"namespace": "team", "plural": "pods", "name": "chat", "subresource": "status"}
    parts[place] = part
    path, refused = _made("apps/v1", **parts)
    if refused is not None:
        assert isinstance(refused, ClusterError)
        assert refused.value == part[:254]
        assert refused.field.startswith({"plural": "resource"}.get(place, place))
        return
    sent = URL(f"https://api.example:6443/base{path}")
    wanted = ["base", "apis", "apps", "v1", "namespaces", *parts.values()]
    assert sent.path.split("/")[1:] == wanted
    assert (sent.raw_query_string, sent.raw_fragment, sent.raw_path.count("/")) == ("", "", 9)


def _made(*args, **parts):
    try:
        return api_path(*args, **parts), None
    except InvalidNameError as error:
        return None, error


@given(version=PARTS)
@example(version="..")
@example(version="../v1")
@example(version="/v1")
@example(version="apps/v1/namespaces")
def test_a_group_version_is_one_or_two_segments_or_refused(version):
    """Of targets and of owners."""
    path, refused = _made(version, "pods")
    if refused is None:
        root = "/apis" if "/" in version else "/api"
        assert URL(f"https://api.example{path}").path == f"{root}/{version}/pods"


def test_names_of_the_api_server_are_kept():
    """Names with colons, blanks of a user's language, and capitals exist."""
    path = api_path("rbac.authorization.k8s.io/v1", "clusterroles", name="system:node ü")
    assert path == "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode%20%C3%BC"


def test_no_other_file_makes_a_path():
    """No text that begins as a path, or leads into a namespace, and no use of the type's name."""
    files = set(SOURCE.rglob("*.py")) - {Path(paths.__file__)}
    assert len(files) > 400
    assert {str(file): lines for file in files if (lines := list(_made_in(file)))} == {}


def _made_in(file):
    tree = ast.parse(file.read_text())
    docs = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ApiPath"):
            yield node.lineno
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs:
            begins = node.value.startswith(("/api/", "/apis", "/version"))
            if begins or "namespaces/" in node.value:
                yield node.lineno
