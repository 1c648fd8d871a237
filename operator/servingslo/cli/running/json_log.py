"""The log as JSON objects if wanted, what each line says in addition, and what is left out."""

import ast
import json
import logging
import re

import kopf

# A pair as log lines have it: a bare word, or a quoted text with backslashes as escapes.
_PAIR = re.compile(r"""(?<!\S)(\w+)=("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S*)(?!\S)""")
_EVENT = re.compile(r"\w+")


class JSONFormatter(logging.Formatter):
    """Time, level, the whole message, and each key=value pair of it as a field.

    event: the word before the first pair ('decided', 'changed'). Pairs never replace the fields
    that every line has.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        message = record.getMessage()
        own: dict[str, str] = {
            "time": self.formatTime(record, self.datefmt),
            "level": record.levelname,
            "message": message,
        }
        pairs = {match[1]: _value(match[2]) for match in _PAIR.finditer(message)}
        if pairs and (event := _EVENT.match(message)):
            own["event"] = event[0]
        if record.exc_info:
            own["exception"] = self.formatException(record.exc_info)
        return json.dumps({**own, **{k: v for k, v in pairs.items() if k not in own}})


def _value(text: str) -> str:
    """What a quoted text says, as `quoted` or repr wrote it."""
    try:
        if text[:1] == '"':
            return str(json.loads(text))
        if text[:1] == "'":
            return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        pass
    return text


def keep_once(record: logging.LogRecord) -> bool:
    """Leave out that a task lost its credentials: each does, and the process ends with the reason.

    So it is after `helm uninstall`, while the pod of an account that is gone still runs.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], kopf.LoginError)
