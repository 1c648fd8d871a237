"""Good and bad specs, read from api_cases.yaml: the same table for pydantic and the API server."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TABLE: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "api_cases.yaml").read_text(encoding="utf-8")
)
# Further bases: of each feature that has one.
_BASES: list[str] = []
for _path in sorted(Path(__file__).parents[1].glob("features/*/api_cases.yaml")):
    for _name, _more in yaml.safe_load(_path.read_text(encoding="utf-8")).items():
        _BASES += [] if _name in TABLE else [_name]
        _known = TABLE.get(_name, type(_more)())
        if _name == "base" and "replicas" in _more:
            # Several features add a field there.
            _more["replicas"] = {**_known["replicas"], **_more["replicas"]}
        TABLE[_name] = {**_known, **_more} if isinstance(_more, dict) else [*_known, *_more]
# A rule about the field of a feature that is gone holds no more.
_FIELDS = {path.partition(".")[0].partition("[")[0] for path in TABLE["fields"]}
TABLE["rules"] = [
    one for one in TABLE["rules"] if one["path"].partition(".")[0].partition("[")[0] in _FIELDS
]
_PART = re.compile(r"\w+|\[\d+\]")
_FIRST = "pools[0]"
# In a spec with pools, such a change of one pool needs the same of the other.
_OF_BOTH = ("cost.currency", "replicas.min")


def _state_in_first_pool() -> None:
    """The first pool states what the base states, and has the base's cases."""
    names = TABLE["of_a_pool"]
    first = TABLE["pooled"]["pools"][0]
    TABLE["pooled"]["pools"][0] = {
        **first,
        **{name: TABLE["base"][name] for name in names if name not in first},
    }

    def shared(path: str) -> bool:
        return path.split(".", maxsplit=1)[0] in names

    TABLE["fields"] |= {f"{_FIRST}.{p}": f for p, f in TABLE["fields"].items() if shared(p)}
    TABLE["required"] += [f"{_FIRST}.{path}" for path in TABLE["required"] if shared(path)]
    TABLE["rules"] += [
        {
            **rule,
            "id": f"{rule['id']}-of-a-pool",
            "path": f"{_FIRST}.{rule['path']}",
            "bad": {f"{_FIRST}.{path}": value for path, value in rule["bad"].items()},
            "good": {f"{_FIRST}.{path}": value for path, value in rule["good"].items()},
            "of": "pooled",
        }
        for rule in TABLE["rules"]
        if "of" not in rule
        and "." in rule["path"]
        and all(map(shared, (rule["path"], *rule["bad"], *rule["good"])))
    ]


_state_in_first_pool()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSpec:
    """A spec that must be refused: with the path, and every word, in the message."""

    id: str
    path: str
    spec: dict[str, Any]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodSpec:
    """A spec that must be accepted."""

    id: str
    spec: dict[str, Any]


def changed(changes: dict[str, Any], of: str = "") -> dict[str, Any]:
    """The base with some places changed; None removes the place.

    of: which base; '' for the one that has all paths.
    """
    first = {_keys(path)[0] for path in changes}
    pooled = "pooled" if first & {"pools", "gpus", "transfer"} else "base"
    own = (name for name in _BASES if first & (TABLE[name].keys() - TABLE["base"].keys()))
    spec = copy.deepcopy(TABLE[of or next(own, pooled)])
    for path, value in changes.items():
        *above, last = _keys(path)
        place = spec
        for key in above:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return spec


def without(path: str) -> dict[str, Any]:
    """The base without one field."""
    return changed({path: None})


def good_specs() -> Iterator[GoodSpec]:
    """The good twins of all fields and rules."""
    yield GoodSpec(id="base", spec=changed({}))
    for path, field in TABLE["fields"].items():
        for value in field.get("good", ()):
            changes = {path: value}
            # A low maximum or limit would break the rules between fields.
            if path == "replicas.max":
                changes["fallback.replicas"] = min(4, value)
            for shared in _OF_BOTH:
                if path == f"{_FIRST}.{shared}":
                    changes[f"pools[1].{shared}"] = value
            yield GoodSpec(id=f"{path}={value}", spec=changed(changes))
    for rule in TABLE["rules"]:
        yield GoodSpec(id=rule["id"], spec=changed(rule["good"], rule.get("of", "base")))


def bad_values() -> Iterator[BadSpec]:
    """Values of the right type outside their range: path, value and range must be told."""
    for path, field in TABLE["fields"].items():
        for value in field.get("bad", ()):
            # An API server gives the length of a list, not its items.
            said = [] if value == "" or isinstance(value, list) else [f"{value}"]
            words = (*_words(field["allowed"]), *said)
            yield BadSpec(id=f"{path}={value}", path=path, spec=changed({path: value}), words=words)
        if "too_many" in field:
            count, item = field["too_many"]
            yield BadSpec(
                id=f"{path}-too-many",
                path=path,
                spec=changed({path: [item] * count}),
                words=(f"at most {count - 1} items",),
            )
    objective = TABLE["base"]["objectives"][0]
    many = [objective | {"percentile": 90 + n} for n in range(9)]
    yield BadSpec(
        id="objectives-too-many",
        path="objectives",
        spec=changed({"objectives": many}),
        words=("at most 8 items",),
    )


def mistyped_values() -> Iterator[BadSpec]:
    """Values of a wrong type: path and type must be told, as the API server tells it."""
    for path, field in TABLE["fields"].items():
        for value in field.get("mistyped", ()):
            spec = changed({path: value})
            yield BadSpec(id=f"{path}={value}", path=path, spec=spec, words=_words(field["type"]))


def missing_fields() -> Iterator[BadSpec]:
    """Specs without a field that must be there: the path and the need must be told."""
    for path in TABLE["required"]:
        yield BadSpec(id=path, path=path, spec=without(path), words=("equired",))


def broken_rules() -> Iterator[BadSpec]:
    """Specs whose fields are fine one by one and disagree."""
    for rule in TABLE["rules"]:
        yield BadSpec(
            id=rule["id"],
            path=rule["path"],
            spec=changed(rule["bad"], rule.get("of", "base")),
            words=tuple(rule["says"]),
        )


def _keys(path: str) -> list[str | int]:
    return [int(part[1:-1]) if part[0] == "[" else part for part in _PART.findall(path)]


def _words(allowed: str | list[str]) -> tuple[str, ...]:
    return (allowed,) if isinstance(allowed, str) else tuple(allowed)
