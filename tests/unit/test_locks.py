"""What is installed is what the locks name: nothing is left for a resolver to find."""

import importlib.metadata
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LAB = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
LAB_EXTRAS = LAB["project"]["optional-dependencies"]
# Beside a user's own ai-dynamo, in an environment of the user's.
UNLOCKED = "peers"
# Of the same checkout, and of no index.
OPERATOR = f"servingslo=={PROJECT['project']['version']}"
DEVELOPMENT = "requirements-dev.lock"
# Each lock with the extras and the dependency groups that it installs; none of the project's own
# requirements where only a group is meant.
LOCKS = {
    "requirements.lock": (True, (), ()),
    "requirements-keda.lock": (True, ("keda",), ()),
    "requirements-build.lock": (False, (), ("build",)),
    "requirements-sbom.lock": (False, (), ("sbom",)),
    "requirements-site.lock": (False, (), ("site",)),
    DEVELOPMENT: (True, tuple(EXTRAS), ("dev",)),
}
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")

Pins = dict[str, list[Requirement]]


def _entries(text: str) -> list[str]:
    """Each entry of a lock on a line of its own, without its comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [entry for entry in "\n".join(lines).replace("\\\n", " ").splitlines() if entry.strip()]


def _pins(text: str) -> Pins:
    """The pinned distributions of a lock by name; one may stand once for each Python."""
    found: Pins = {}
    for entry in _entries(text):
        pin = Requirement(entry.partition(" --hash")[0])
        found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


def _group(name: str) -> list[str]:
    """What a dependency group asks for, with the groups it includes."""
    return [
        line
        for item in PROJECT["dependency-groups"][name]
        for line in (_group(item["include-group"]) if isinstance(item, dict) else [item])
    ]


def _asked(lock: str) -> list[Requirement]:
    """What the project asks for in a lock; what its lab asks for in that of development alone."""
    own, extras, groups = LOCKS[lock]
    lines = list(PROJECT["project"]["dependencies"]) if own else []
    for extra in extras:
        lines += EXTRAS[extra]
    for group in groups:
        lines += _group(group)
    if lock == DEVELOPMENT:
        lines += [line for line in LAB["project"]["dependencies"] if line != OPERATOR]
        locked = [lines for extra, lines in LAB_EXTRAS.items() if extra != UNLOCKED]
        lines += [line for extra in locked for line in extra]
    return [Requirement(line) for line in lines]


def test_the_lab_is_of_the_operator_s_version() -> None:
    """It asks for that one and no other."""
    assert LAB["project"]["version"] == PROJECT["project"]["version"]
    assert OPERATOR in LAB["project"]["dependencies"]


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_has_what_only_peers_need(lock: str) -> None:
    """`make setup` installs neither ai-dynamo nor what its planner imports beside it."""
    pinned = _pins((ROOT / lock).read_text(encoding="utf-8"))
    assert "ai-dynamo" not in pinned
    assert not {"pmdarima", "prophet", "filterpy"} & set(pinned)


def _applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


def _required(name: str, extra: str, environment: dict[str, str]) -> Iterator[Requirement]:
    """What an installed distribution asks for in an environment for one of its extras, or none."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return  # For another platform: nothing is known of it here.
    for line in lines:
        requirement = Requirement(line)
        if _applies(requirement, environment | {"extra": extra}):
            yield requirement


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _left_to_a_resolver(
    asked: list[Requirement], pins: Pins, environment: dict[str, str]
) -> list[str]:
    """What is asked for, directly or by what is asked for, and not pinned as it is asked for.

    The metadata are those of the installed distributions. Where another version is pinned for this
    environment, it is taken to ask for the same distributions, in versions that are not known.
    """
    missing: list[str] = []
    todo = [(r, "the project", True) for r in asked if _applies(r, environment)]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, by, exact = todo.pop()
        name = canonicalize_name(requirement.name)
        pinned = [pin for pin in pins.get(name, []) if _applies(pin, environment)]
        if len(pinned) != 1:
            missing.append(f"{requirement} of {by}: {len(pinned)} pins")
            continue
        version = str(pinned[0].specifier).removeprefix("==")
        if exact and not requirement.specifier.contains(Version(version), prereleases=True):
            missing.append(f"{requirement} of {by}: {version} is pinned")
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                known = _version(name) == version
                todo += [(r, name, known) for r in _required(name, extra, environment)]
    return missing


def _environment(python: str, machine: str) -> dict[str, str]:
    """Markers of CPython on Linux."""
    return {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "extra": "",
    }


def _lock(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("python", "machine"), [*itertools.product(PYTHONS, MACHINES)])
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_all_that_it_asks_for(lock: str, python: str, machine: str) -> None:
    """Each requirement, extras and what they ask for in turn included, has one fitting pin."""
    environment = _environment(python, machine)
    assert _left_to_a_resolver(_asked(lock), _pins(_lock(lock)), environment) == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_pins_with_hashes_and_nothing_else(lock: str) -> None:
    """Exact versions, a hash each, no option, no address and no name of a registry."""
    text = _lock(lock)
    for entry in _entries(text):
        assert re.fullmatch(r"[\w.-]+==[^\s;]+( ; [^-]+)?(\s+--hash=sha256:[0-9a-f]{64})+", entry)
    assert "://" not in text
    assert re.search(r"^\s*-", re.sub(r"--hash=\S+", "", text), re.MULTILINE) is None


def test_whatever_installs_a_lock_resolves_nothing() -> None:
    """Each call of pip that reads a lock has --no-deps and --require-hashes, and a check after."""
    for name in ("Makefile", "Dockerfile"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        calls = re.findall(r"pip install .*? -r \S+", text)
        assert calls
        assert all("--no-deps" in c and "--require-hashes" in c for c in calls), calls
        assert "pip check" in text


def test_the_image_s_wheel_is_built_with_what_a_lock_names() -> None:
    """No call of pip that builds makes an environment of its own from the newest releases."""
    for name in ("Makefile", "Dockerfile"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        builds = re.findall(r"pip (?:wheel .*|install .*--editable.*)", text)
        assert builds
        assert all("--no-build-isolation" in build for build in builds), builds
