"""Formulas and constants of the pure layers say where they come from."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "operator/servingslo"
# Evaluate, prepare and pass on what other modules derive.
WITHOUT_FORMULAS = {
    "engine_kinds",
    "judging",
    "kernel",
    "latency",
    "load_laws",
    "objective_metrics",
    "objectives",
    "prediction",
    "rows",
}
MODELS = sorted(
    path for path in (PACKAGE / "models").rglob("*.py") if path.stem not in WITHOUT_FORMULAS
)
PURE = sorted(
    path for layer in ("models", "estimation", "policy") for path in (PACKAGE / layer).rglob("*.py")
)
# Changes of units, and neutral values.
PLAIN = {"SECONDS_PER_MINUTE", "PERCENT", "ALONE", "_NO_NUMBERS"}


def named(path: Path) -> str:
    """A test's name for a file."""
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", MODELS, ids=named)
def test_public_functions_of_the_models_name_a_source(path):
    """In their own docstring, or in that of a module about one derivation."""
    module = ast.parse(path.read_text())
    if "Source:" in (ast.get_docstring(module) or ""):
        return
    silent = [
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and "Source:" not in (ast.get_docstring(node) or "")
    ]
    assert not silent


def constants(module: ast.Module) -> list[tuple[str, int]]:
    """Names and lines of the constants of a module that have a number of their own."""
    found = []
    for node in module.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        own = any(
            isinstance(part, ast.Constant) and type(part.value) in (int, float)
            for part in ast.walk(node.value)
        )
        if own and name.strip("_()").replace("_", "").replace(", ", "").isupper():
            found.append((name, node.lineno))
    return found


@pytest.mark.parametrize("path", PURE, ids=named)
def test_constants_of_the_pure_layers_are_explained(path):
    """Above them, or above the first of a group without a blank line."""
    text = path.read_text()
    lines = text.splitlines()
    silent = []
    for name, line in constants(ast.parse(text)):
        above = line - 2
        while lines[above] and not lines[above].startswith("#"):
            above -= 1
        if not lines[above].startswith("#") and name not in PLAIN:
            silent.append(name)
    assert not silent
