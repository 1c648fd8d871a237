"""Which CRDs of other projects the rig takes, and from where."""

import pytest

from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.programs.upstream_crds import ENVOY_GATEWAY, GATEWAY_API, UpstreamCRDs


@pytest.mark.parametrize("crds", [GATEWAY_API, ENVOY_GATEWAY], ids=lambda crds: crds.name)
def test_every_module_is_pinned_with_a_checksum(crds: UpstreamCRDs) -> None:
    """go.mod names one version of the module, and go.sum has its checksum."""
    sums = (versions.TOOLS_DIRECTORY / "crds" / "go.sum").read_text(encoding="utf-8")
    assert f"{crds.module} {crds.version} h1:" in sums
