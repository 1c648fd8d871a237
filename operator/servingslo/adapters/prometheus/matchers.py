"""The administrator's matchers, which every selector of every query has.

In a store of several clusters (Thanos, Mimir, VictoriaMetrics, a managed one) they say which of
them is this one. Nothing of what a tenant writes enters them.
"""

import re

from servingslo.errors import InvalidInputError

_ALLOWED = 'matchers as in PromQL, such as cluster="a", region=~"eu-.*"; not of __name__'
# In a value a quote and a backslash are escaped. Source: Prometheus, docs/querying/basics.md.
_ONE = r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\\n]|\\["\\])*)"\s*'
_WHOLE = re.compile(rf"(?:{_ONE},)*{_ONE},?\s*")
_EACH = re.compile(_ONE)
# Python's regular expressions have them, those of Prometheus do not. Source: RE2, Syntax.
_NOT_RE2 = re.compile(r"\(\?<?[=!]|\\[1-9]")


def checked(text: str) -> str:
    """The same matchers, each once and as PromQL writes it; '' for none.

    Raises: InvalidInputError for what Prometheus would refuse.
    """
    found = _EACH.findall(text)
    whole = not text.strip() or _WHOLE.fullmatch(text)
    if not whole or any(label == "__name__" for label, _, _ in found):
        raise InvalidInputError("--prometheus-matchers", text, _ALLOWED)
    for label, how, value in found:
        if how.endswith("~") and not _is_expression(value):
            allowed = f"a regular expression for {label} that Prometheus knows (RE2)"
            raise InvalidInputError("--prometheus-matchers", text, allowed)
    return ", ".join(dict.fromkeys(f'{label}{how}"{value}"' for label, how, value in found))


def _is_expression(value: str) -> bool:
    text = re.sub(r"\\(.)", r"\1", value)
    try:
        re.compile(text)
    except re.error:
        return False
    return not _NOT_RE2.search(text)
