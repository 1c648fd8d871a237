"""Envoy's files: the translator's own resources, with other addresses and sources, and no more."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from servingslo_lab.rig.gateways.envoy_files import (
    EnvoyFolder,
    Translation,
    translation_of,
    with_endpoints,
)

# What egctl 1.9.1 made of a Gateway, a route, a Service and a policy with maxParallelRequests 4.
CAPTURE = Path(__file__).parents[1] / "golden" / "data" / "egctl_1.9.1_translation.json"
PODS = [("127.9.64.1", 8000), ("127.9.64.2", 8000)]


@pytest.fixture
def translation() -> Translation:
    """Of the capture."""
    return translation_of(json.loads(CAPTURE.read_text(encoding="utf-8"))["xds"]["t1/gate"])


@pytest.fixture
def folder(tmp_path: Path, translation: Translation) -> EnvoyFolder:
    """Everything written for one proxy."""
    found = EnvoyFolder(path=tmp_path / "envoy", admin_port=9901)
    found.write_bootstrap(translation.bootstrap)
    found.write_endpoints(with_endpoints(one, lambda _: PODS) for one in translation.endpoints)
    found.write(translation, lambda port: port + 20_000)
    return found


def _resources(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["resources"]
    return found


def test_clusters_are_the_translator_s_but_for_where_endpoints_are_looked_for(
    folder: EnvoyFolder, translation: Translation
) -> None:
    """Circuit breakers and balancing reach Envoy as Envoy Gateway makes them."""
    written = _resources(folder.path / "clusters.json")
    assert written[0]["circuitBreakers"]["thresholds"][0]["maxRequests"] == 4
    expected = [copy.deepcopy(one) for one in translation.clusters]
    for one in (*written, *expected):
        del one["edsClusterConfig"]["edsConfig"]
    assert written == expected


def test_everything_listens_on_loopback_and_looks_into_files(folder: EnvoyFolder) -> None:
    """No listener of other interfaces, no stream to a controller that is not there."""
    texts = [path.read_text(encoding="utf-8") for path in folder.path.iterdir()]
    assert not any("0.0.0.0" in text or '"ads"' in text for text in texts)  # noqa: S104
    (listener,) = _resources(folder.path / "listeners.json")
    assert listener["address"]["socketAddress"] == {"address": "127.0.0.1", "portValue": 28_080}
    sources = [
        one["typedConfig"]["rds"]["configSource"]["pathConfigSource"]["path"]
        for one in listener["defaultFilterChain"]["filters"]
    ]
    assert [Path(one).exists() for one in sources] == [True]
