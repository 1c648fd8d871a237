"""What Artifact Hub shows of the chart, and the images that the chart can run.

    python -m tests.charts.metadata                     writes the end of Chart.yaml
    python -m tests.charts.metadata --repository URL    the same, of the repository at that address
    python -m tests.charts.metadata --images            prints the images, for mirrors

Made of values.yaml, the CRDs, pyproject.toml and the changelog's section of the chart's version.
The checkout does not know where its repository is hosted: only the release workflow gives the
address, and until then PLACEHOLDER stands for it.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import yaml
from tests.charts.reference import CHART, ROOT

# A name that RFC 2606 keeps from ever being one of a host.
PLACEHOLDER = "https://repository.invalid"
_MARK = "# Written by make chart-docs.\n"
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
# A link in brackets leads to more, and says nothing itself.
_MORE = re.compile(r" \((?:\[[^]]*\]\([^)]*\)(?:, )?)+\)")
_WIDEST = 10_000


def chart_yaml(repository: str = PLACEHOLDER) -> str:
    """Chart.yaml: what is written by hand, then what is known elsewhere."""
    text = (CHART / "Chart.yaml").read_text(encoding="utf-8").partition(_MARK)[0]
    made = {
        "home": repository,
        "sources": [repository],
        "icon": f"{repository}/raw/v{_chart()['version']}/{_icon()}",
        "maintainers": [{"name": name, "url": repository} for name in _authors()],
        "annotations": {
            f"artifacthub.io/{name}": value for name, value in _annotations(repository)
        },
    }
    return f"{text}{_MARK}{_yaml(made)}"


def images() -> dict[str, str]:
    """Each image that the chart can run, by the path of its value."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return dict(_images(values, ""))


def changes(changelog: str, version: str) -> list[dict[str, str]]:
    """The entries of a version, without links, as Artifact Hub reads them."""
    section = re.search(
        rf"^## \[{re.escape(version)}\].*?$(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise SystemExit(f"CHANGELOG.md has no section [{version}]")
    found = []
    kind = ""
    for line in section[1].splitlines():
        if line.startswith("### "):
            kind = line.removeprefix("### ").lower()
        elif line.startswith("- "):
            text = _LINK.sub(r"\1", _MORE.sub("", line.removeprefix("- ")))
            found.append({"kind": kind, "description": text})
    return found


def _annotations(repository: str) -> Iterator[tuple[str, str]]:
    version = _chart()["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    yield "license", _project()["license"]
    yield "operator", "true"
    if f"## [{version}] - unreleased" in changelog:
        yield "prerelease", "true"
    yield "images", _yaml([{"name": _name(image), "image": image} for image in images().values()])
    yield "crds", _yaml([*_crds()])
    pages = {
        "documentation": "docs/README.md",
        "support": "docs/support.md",
        "security": "SECURITY.md",
    }
    yield (
        "links",
        _yaml(
            [
                {"name": name, "url": f"{repository}/blob/v{version}/{page}"}
                for name, page in pages.items()
            ]
        ),
    )
    yield "changes", _yaml(changes(changelog, version))


def _images(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if name == "image":
            yield f"{path}image", _reference(value)
        elif isinstance(value, dict):
            yield from _images(value, f"{path}{name}.")


def _reference(image: str | Mapping[str, str]) -> str:
    """As the template `servingslo.image` makes it."""
    if isinstance(image, str):
        return image
    name = "/".join(part for part in (image["registry"], image["repository"]) if part)
    if image["digest"]:
        return f"{name}@{image['digest']}"
    return f"{name}:{image['tag'] or _chart()['appVersion']}"


def _name(image: str) -> str:
    return re.split(r"[:@]", image.rpartition("/")[2])[0]


def _crds() -> Iterator[dict[str, str]]:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text(encoding="utf-8"))
        spec = crd["spec"]
        stored = next(version for version in spec["versions"] if version["storage"])
        kind = spec["names"]["kind"]
        description = stored["schema"]["openAPIV3Schema"]["description"]
        yield {
            "kind": kind,
            "version": stored["name"],
            "name": crd["metadata"]["name"],
            "displayName": kind,
            "description": " ".join(description.split()),
        }


def _icon() -> str:
    return (CHART / "icon.svg").relative_to(ROOT).as_posix()


def _chart() -> dict[str, str]:
    chart: dict[str, str] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return chart


def _project() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def _authors() -> list[str]:
    return [author["name"] for author in _project()["authors"]]


class _Block(yaml.SafeDumper):
    """Text of several lines stands as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Block.add_representer(str, _text)


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Block, sort_keys=False, width=_WIDEST, allow_unicode=True)


def _address(text: str) -> str:
    address = urlsplit(text)
    if address.scheme != "https" or not address.hostname or address.query or address.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is no https address of a repository")
    return text.rstrip("/")


def main() -> None:
    """Write Chart.yaml, or print the images."""
    parser = argparse.ArgumentParser(prog="tests.charts.metadata")
    parser.add_argument("--repository", type=_address, default=PLACEHOLDER)
    parser.add_argument("--images", action="store_true")
    arguments = parser.parse_args()
    if arguments.images:
        sys.stdout.writelines(f"{image}\n" for image in images().values())
    else:
        text = chart_yaml(arguments.repository)
        (CHART / "Chart.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
