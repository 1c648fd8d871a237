"""Which CRDs of other projects the rig takes, and from where."""

import json
import stat
from pathlib import Path

import pytest

from servingslo_lab.errors import RigError
from servingslo_lab.rig.programs import upstream_crds, versions
from servingslo_lab.rig.programs.upstream_crds import ENVOY_GATEWAY, GATEWAY_API, UpstreamCRDs

_TEMPLATE = """{{- if .Values.crds.enabled }}
---
kind: CustomResourceDefinition
metadata: {name: things.example.org}
---
kind: ValidatingAdmissionPolicy
metadata: {name: no-crd}
{{- end }}
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A module's folder of CRDs, which a `go` on PATH says it downloaded; it counts its calls."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = tmp_path / "module"
    (module / "crds").mkdir(parents=True)
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    document = json.dumps({"Dir": str(module)})
    go.write_text(
        '#!/bin/sh\n[ "$1" = version ] && { echo go version go1.99.0 linux/amd64; exit; }\n'
        f"echo called >> {tmp_path / 'calls'}; echo '{document}'\n"
    )
    go.chmod(go.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    return module / "crds"


@pytest.mark.parametrize("crds", [GATEWAY_API, ENVOY_GATEWAY], ids=lambda crds: crds.name)
def test_every_module_is_pinned_with_a_checksum(crds: UpstreamCRDs) -> None:
    """go.mod names one version of the module, and go.sum has its checksum."""
    sums = (versions.TOOLS_DIRECTORY / "crds" / "go.sum").read_text(encoding="utf-8")
    assert f"{crds.module} {crds.version} h1:" in sums


def test_crds_are_taken_out_of_a_module_once(folder: Path, tmp_path: Path) -> None:
    """A chart's conditions and other kinds are left out; the second time nothing is downloaded."""
    (folder / "things.yaml").write_text(_TEMPLATE)
    crds = UpstreamCRDs(name="things", module=GATEWAY_API.module, folder="crds")
    first = upstream_crds.manifests(crds)
    assert [one["metadata"]["name"] for one in first] == ["things.example.org"]
    assert upstream_crds.manifests(crds) == first
    assert (tmp_path / "calls").read_text().splitlines() == ["called"]


def test_a_module_without_crds_is_an_error(folder: Path) -> None:
    """A folder that moved with a new version is told by name, and nothing is kept."""
    crds = UpstreamCRDs(name="things", module=GATEWAY_API.module, folder="crds")
    with pytest.raises(RigError, match="things: no CRDs in crds"):
        upstream_crds.manifests(crds)
    assert not crds.cached.exists()
