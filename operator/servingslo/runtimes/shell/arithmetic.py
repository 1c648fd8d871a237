"""Integer expressions of `$((…))`: sums, products and brackets of numbers and variables."""

import ast
from collections.abc import Callable

# An expression in a pod's arguments has a few words; a longer one is not evaluated.
_LONGEST = 64
_LARGEST = 10**15


def arithmetic(expression: str, value: Callable[[str], str | None]) -> int | None:
    """Its value; None for other expressions, or if a variable is not known.

    value: the text of a variable, '' if it is not set, None if it is not known.
    """
    text = expression.strip()
    if len(text) > _LONGEST:
        return None
    try:
        return _value(ast.parse(text, mode="eval").body, value)
    except (SyntaxError, ValueError):
        return None


def _value(node: ast.expr, value: Callable[[str], str | None]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        text = value(node.id)
        return None if text is None else 0 if text == "" else _decimal(text)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _value(node.left, value), _value(node.right, value)
    if left is None or right is None:
        return None
    return _combined(node.op, left, right)


def _combined(operator: ast.operator, left: int, right: int) -> int | None:
    """The result; a shell divides towards zero, and negative operands are not needed."""
    if isinstance(operator, ast.Add):
        result = left + right
    elif isinstance(operator, ast.Sub):
        result = left - right
    elif isinstance(operator, ast.Mult):
        result = left * right
    elif isinstance(operator, ast.FloorDiv | ast.Div | ast.Mod) and right > 0 <= left:
        result = left % right if isinstance(operator, ast.Mod) else left // right
    else:
        return None
    return result if abs(result) <= _LARGEST else None


def _decimal(text: str) -> int | None:
    """The decimal number; None if a shell could read it in another base."""
    plain = text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST))
    return int(text) if plain and (text == "0" or text[0] != "0") else None
